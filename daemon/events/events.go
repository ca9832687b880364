// Package events reports what is done to apps: to the audit trail, to subscribers, to Prometheus, and to the log.
package events

import (
	"context"
	"encoding/json"
	"fmt"

	"mulligan/daemon/accounts"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// Events reports operations: the audit trail keeps them, the feed sends them to subscribers, the metrics count them, and the
// log has those that failed. Safe for concurrent use.
type Events struct {
	feed
	*metrics
	opt   *settings.Options
	store *records.Records
}

// New returns the events of a daemon with these records.
func New(opt *settings.Options, store *records.Records) *Events {
	return &Events{metrics: newMetrics(), opt: opt, store: store}
}

// WriteAudit appends an entry to the audit trail, also for a client that left. If that fails, it logs the error, because the
// operation is complete by then.
func (e *Events) WriteAudit(ctx context.Context, app store.App, who ipc.Caller, action, target, reason string, result error, detail any) {
	entry := e.Entry(app, who, action, target, reason, result, detail)
	e.Operations.WithLabelValues(action, ResultOf(result)).Inc()
	if err := e.store.Audit(context.WithoutCancel(ctx), entry); err != nil {
		e.opt.Log.Error("audit entry not written", "app", app.Slug, "action", action, "err", err)
	}
	if result != nil {
		e.opt.Log.Warn(action+" failed", "app", app.Slug, "target", target, "err", result)
	}
}

// Entry returns the entry of the audit trail for an operation.
func (e *Events) Entry(app store.App, who ipc.Caller, action, target, reason string, result error, detail any) ipc.AuditEntry {
	entry := ipc.AuditEntry{
		At: e.opt.Now().UTC(), AppID: app.ID, Actor: accounts.Actor(who), Action: action, Target: target, Reason: reason, Result: "ok",
	}
	if result != nil {
		entry.Result = string(errs.KindOf(result)) + ": " + result.Error()
	}
	if detail != nil {
		body, err := json.Marshal(detail)
		if err != nil {
			e.opt.Log.Error("audit entry lacks its detail", "err", err)
		}
		entry.Detail = body
	}
	return entry
}

// AuditNumber returns the number of the newest entry of the app's audit trail, as evidence.
func (e *Events) AuditNumber(ctx context.Context, app ipc.AppID) []string {
	trail, err := e.store.AuditTrail(ctx, app, 1)
	if err != nil || len(trail) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("audit:%d", trail[0].Seq)}
}
