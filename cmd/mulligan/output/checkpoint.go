package output

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"mulligan/ipc"
)

// PrintCheckpoints prints a row for each checkpoint. If numbered is true, the
// rows on a terminal begin with the number that commands accept for a
// checkpoint; list must then be the app's whole list, newest first.
func (p *Printer) PrintCheckpoints(list []ipc.Checkpoint, numbered bool) {
	header := []string{"CHECKPOINT", "MADE", "TRIGGER", "PIN", "SIZE", "COMMIT", "NOTES"}
	numbered = numbered && p.Terminal
	if numbered {
		header = append([]string{"N"}, header...)
	}
	var rows [][]string
	n := 0
	for _, cp := range list {
		row, number := p.checkpointRow(cp), "-"
		if !cp.CalledOff && cp.Location != ipc.LocationRemote {
			n++
			number = strconv.Itoa(n)
		}
		if numbered {
			row = append([]string{number}, row...)
		}
		rows = append(rows, row)
	}
	p.Table(header, rows, "COMMIT", "PIN", "SIZE", "TRIGGER")
}

func (p *Printer) checkpointRow(cp ipc.Checkpoint) []string {
	ref, pin := p.OptionalText(cp.Ref), YesNo(cp.Pinned)
	if p.Terminal {
		ref = ref[:min(len(ref), 9)]
		if !cp.Pinned {
			pin = "-"
		}
	}
	notes := p.notesOf(cp)
	if turn := p.turnOf(cp); p.Terminal && turn != "" && cp.Trigger == ipc.TriggerAgent {
		notes = "before " + turn
		if cp.Notes != nil {
			notes += ": " + p.OptionalText(cp.Notes)
		}
	}
	if cp.Damaged != "" {
		notes = "DAMAGED " + notes
	}
	if cp.CalledOff {
		notes += ", which was called off"
	}
	if len(cp.Raw) > 0 {
		notes += " (raw bytes of " + p.Text(strings.Join(cp.Raw, ", ")) + ")"
	}
	if p.Terminal && cp.Location == ipc.LocationHere {
		notes += " (not on a remote)"
	}
	if cp.Location == ipc.LocationRemote {
		notes += " (on a remote alone)"
	}
	row := []string{
		p.Text(string(cp.ID)), p.Time(cp.CreatedAt), p.Text(string(cp.Trigger)), pin, p.Size(cp.SizeBytes), ref, notes,
	}
	if !p.Terminal {
		row = append(row, p.Text(cp.Title))
	}
	return row
}

// notesOf returns the notes of a checkpoint. For people, those of a safety checkpoint name what its rollback went to by its title.
func (p *Printer) notesOf(cp ipc.Checkpoint) string {
	if p.Terminal && cp.RollbackTitle != "" {
		return "safety checkpoint before rollback to " + p.quoted(cp.RollbackTitle)
	}
	return p.OptionalText(cp.Notes)
}

// PrintCheckpoint prints the checkpoint that a command made or changed, with its warnings.
func (p *Printer) PrintCheckpoint(cp ipc.Checkpoint) error {
	if p.JSON {
		return p.PrintJSON(cp)
	}
	p.PrintCheckpoints([]ipc.Checkpoint{cp}, false)
	p.PrintWarnings(cp.Warnings)
	return nil
}

// PrintWarnings prints warnings. In a pipe, where standard output is for programs, they go to standard error.
func (p *Printer) PrintWarnings(warnings []string) {
	var to io.Writer = p.Stdout
	if !p.Terminal {
		to = p.Stderr
	}
	for _, w := range warnings {
		label := "warning:"
		if p.Terminal {
			label = p.Yellow(label)
		}
		fmt.Fprintf(to, "%s %s\n", label, p.Text(w))
	}
}

// CheckpointFields returns the fields of a checkpoint, for Fields.
func (p *Printer) CheckpointFields(cp ipc.Checkpoint) [][2]string {
	var expires time.Time
	if cp.ExpiresAt != nil {
		expires = *cp.ExpiresAt
	}
	all := [][2]string{
		{"checkpoint_id", p.Text(string(cp.ID))},
		{"app_id", p.Text(string(cp.AppID))},
		{"created_at", p.Time(cp.CreatedAt)},
		{"trigger", p.Text(string(cp.Trigger))},
		{"pinned", YesNo(cp.Pinned)},
		{"quiesced", YesNo(cp.Quiesced)},
		{"running", yesNoUnknown(cp.Running)},
		{"healthy", yesNoUnknown(cp.Healthy)},
		{"rehearsed", yesNoUnknown(cp.Rehearsed)},
		{"size_bytes", p.Size(cp.SizeBytes)},
		{"notes", p.notesOf(cp)},
		{"ref", p.OptionalText(cp.Ref)},
		{"files_snapshot_id", p.OptionalText(cp.FilesSnapshot)},
		{"files_hash", p.OptionalText(cp.FilesHash)},
		{"vm_snapshot_id", p.OptionalText(cp.VMSnapshotID)},
		{"deploy_id", p.OptionalText(cp.DeployID)},
		{"conversation_id", p.OptionalText(cp.ConversationID)},
		{"message_id", p.OptionalText(cp.MessageID)},
		{"turn_id", p.OptionalText(cp.TurnID)},
		{"title", p.Text(cp.Title)},
		{"agent", p.Text(cp.Agent)},
		{"location", p.Text(cp.Location)},
		{"expires_at", p.Time(expires)},
	}
	for _, db := range cp.DBSnapshots {
		parts := []string{db.Database, db.SnapshotID, db.Driver}
		if db.Position != "" {
			parts = append(parts, db.Position)
		}
		all = append(all, [2]string{"db_snapshot", p.Text(strings.Join(parts, " "))})
	}
	for _, l := range cp.Raw {
		all = append(all, [2]string{"raw", p.Text(l)})
	}
	for _, l := range cp.StayedBehind {
		all = append(all, [2]string{"stayed_behind", p.Text(l)})
	}
	if cp.Damaged != "" {
		all = append(all, [2]string{"damaged", p.Text(cp.Damaged)})
	}
	for _, w := range cp.Warnings {
		all = append(all, [2]string{"warning", p.Text(w)})
	}
	return all
}

// yesNoUnknown returns "yes", "no" or, if b is nil, "-".
func yesNoUnknown(b *bool) string {
	if b == nil {
		return "-"
	}
	return YesNo(*b)
}
