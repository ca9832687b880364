package ipc

import "encoding/json"

// An empty list is [] in JSON, never null, because many clients iterate over it without a check. That is the purpose of these
// methods. A type that embeds one of these structs needs a method of its own.

// MarshalJSON writes empty lists as [].
func (c Checkpoint) MarshalJSON() ([]byte, error) {
	type plain Checkpoint
	c.DBSnapshots = list(c.DBSnapshots)
	return json.Marshal(plain(c))
}

// MarshalJSON writes empty lists as [].
func (l CheckpointList) MarshalJSON() ([]byte, error) {
	type plain CheckpointList
	l.Checkpoints = list(l.Checkpoints)
	return json.Marshal(plain(l))
}

// MarshalJSON writes empty lists as [].
func (r RollbackResult) MarshalJSON() ([]byte, error) {
	type plain RollbackResult
	r.Normalize()
	return json.Marshal(plain(r))
}

// Normalize replaces nil lists of the result by empty ones, for encoders that do not call its MarshalJSON.
func (r *RollbackResult) Normalize() {
	r.Stages = list(r.Stages)
	r.ChangesReverted = list(r.ChangesReverted)
	r.Warnings = list(r.Warnings)
	r.NextActions = list(r.NextActions)
	r.EvidenceAnchors = list(r.EvidenceAnchors)
	r.Assumptions = list(r.Assumptions)
}

// MarshalJSON writes empty maps as {}.
func (v Verification) MarshalJSON() ([]byte, error) {
	type plain Verification
	if v.Layers == nil {
		v.Layers = map[string]LayerVerification{}
	}
	return json.Marshal(plain(v))
}

// MarshalJSON writes empty lists as [].
func (p PruneResult) MarshalJSON() ([]byte, error) {
	type plain PruneResult
	p.Deleted = list(p.Deleted)
	return json.Marshal(plain(p))
}

// MarshalJSON writes empty lists as [].
func (v VerifyResult) MarshalJSON() ([]byte, error) {
	type plain VerifyResult
	v.Problems = list(v.Problems)
	return json.Marshal(plain(v))
}

// MarshalJSON writes empty lists as [].
func (l AppList) MarshalJSON() ([]byte, error) {
	type plain AppList
	l.Apps = list(l.Apps)
	return json.Marshal(plain(l))
}

// MarshalJSON writes empty lists as [].
func (l AuditList) MarshalJSON() ([]byte, error) {
	type plain AuditList
	l.Entries = list(l.Entries)
	return json.Marshal(plain(l))
}

// MarshalJSON writes empty lists as [].
func (s Status) MarshalJSON() ([]byte, error) {
	type plain Status
	s.Recovered, s.Problems = list(s.Recovered), list(s.Problems)
	return json.Marshal(plain(s))
}

// list returns s, or an empty list if s is nil.
func list[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
