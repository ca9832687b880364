package turns

import (
	"context"
	"slices"

	"mulligan/daemon/app"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// SetConversationCheckpoint moves a conversation's checkpoint to the state after a message.
// Nothing else changes.
func (svc *Service) SetConversationCheckpoint(ctx context.Context, who ipc.Caller, ref, conversation, message string) (ipc.ConversationCheckpoint, error) {
	const op = "set conversation checkpoint"
	var none ipc.ConversationCheckpoint
	a, err := svc.apps.Find(who, ref)
	if err != nil {
		return none, err
	}
	switch {
	case conversation == "" || message == "":
		return none, errs.New(errs.Invalid, op, "no message_id given").WithHint("`mulligan turns --ids` shows the messages of each conversation")
	case max(len(conversation), len(message)) > MaxName:
		return none, errs.New(errs.Invalid, op, "an id is longer than %d bytes", MaxName)
	}
	turns, err := svc.store.ConversationTurns(ctx, a.Rec().ID, conversation)
	if err != nil {
		return none, err
	}
	c := ipc.ConversationCheckpoint{
		AppID: a.Rec().ID, ConversationID: conversation, MessageID: message, SetAt: svc.opt.Now().UTC(), Warnings: []string{},
	}
	p := store.Pointer{MessageID: message, SetAt: c.SetAt}
	if i := lastOf(turns, message); i >= 0 {
		p.Turn = turns[i].Seq
	} else {
		c.Warnings = append(c.Warnings, "no turn is known for that message: everything written until now counts as before the checkpoint")
		if len(turns) > 0 {
			p.Turn = turns[len(turns)-1].Seq
		}
	}
	if err := svc.store.PutPointer(ctx, a.Rec().ID, conversation, p); err != nil {
		return none, errs.Wrap(errs.Failed, op, err)
	}
	svc.events.WriteAudit(ctx, a.Rec(), who, "set-conversation-checkpoint", conversation, "", nil, c)
	return c, nil
}

// has reports whether message is the message that began the turn, or the turn's own id.
func has(t store.Turn, message string) bool { return t.MessageID == message || string(t.ID) == message }

func firstOf(turns []store.Turn, message string) int {
	return slices.IndexFunc(turns, func(t store.Turn) bool { return has(t, message) })
}

func lastOf(turns []store.Turn, message string) int {
	for i, t := range slices.Backward(turns) {
		if has(t, message) {
			return i
		}
	}
	return -1
}

// TurnsOf returns the turns that a revert request names, oldest first.
func (svc *Service) TurnsOf(ctx context.Context, a *app.App, req ipc.RevertRequest) ([]store.Turn, error) {
	if req.CallID != "" && req.TurnID == "" && req.ConversationID == "" {
		t, _, err := svc.store.Call(ctx, a.Rec().ID, req.CallID)
		return []store.Turn{t}, err
	}
	turns, err := svc.candidates(ctx, a, req)
	switch {
	case err != nil:
		return nil, err
	case req.CallID != "":
		return svc.withCall(ctx, turns, req.CallID)
	case req.TurnID != "":
		return turns, nil
	}
	return svc.span(ctx, a, turns, req)
}

// candidates returns the one turn, or all turns of the conversation, that a request names.
func (svc *Service) candidates(ctx context.Context, a *app.App, req ipc.RevertRequest) ([]store.Turn, error) {
	if req.TurnID != "" {
		t, err := svc.store.Turn(ctx, a.Rec().ID, req.TurnID)
		if err == nil && req.ConversationID != "" && t.ConversationID != req.ConversationID {
			err = errs.New(errs.NotFound, "", "turn %.64q does not belong to that conversation", string(req.TurnID))
		}
		return []store.Turn{t}, err
	}
	turns, err := svc.store.ConversationTurns(ctx, a.Rec().ID, req.ConversationID)
	if err == nil && len(turns) == 0 {
		err = errs.New(errs.NotFound, "", "no turn of conversation %.64q is known", req.ConversationID).
			WithHint("`mulligan turns --ids` shows the conversations that there are")
	}
	return turns, err
}

// withCall returns the newest of the turns that made the call.
func (svc *Service) withCall(ctx context.Context, turns []store.Turn, id ipc.CallID) ([]store.Turn, error) {
	for i, t := range slices.Backward(turns) {
		calls, err := svc.store.Calls(ctx, t.Seq)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(calls, func(c store.Call) bool { return c.ID == id }) {
			return turns[i : i+1], nil
		}
	}
	return nil, errs.New(errs.NotFound, "", "the conversation has no call %.64q", string(id)).
		WithHint("`mulligan turns --json` lists the turns and their calls")
}

// span returns the turns between the request's two messages.
func (svc *Service) span(ctx context.Context, a *app.App, turns []store.Turn, req ipc.RevertRequest) ([]store.Turn, error) {
	unknown := func(m string) error {
		return errs.New(errs.NotFound, "", "the conversation has no message %.64q", m).WithHint("`mulligan turns --ids` shows the messages that there are")
	}
	from, to := 0, len(turns)-1
	if req.FromMessageID != "" {
		if from = firstOf(turns, req.FromMessageID); from < 0 {
			return nil, unknown(req.FromMessageID)
		}
	} else {
		p, err := svc.store.Pointer(ctx, a.Rec().ID, req.ConversationID)
		if err != nil {
			return nil, err
		}
		for from < len(turns) && turns[from].Seq <= p.Turn {
			from++
		}
	}
	if req.ToMessageID != "" {
		if to = lastOf(turns, req.ToMessageID); to < 0 {
			return nil, unknown(req.ToMessageID)
		}
		if to < from && req.FromMessageID != "" {
			return nil, errs.New(errs.Invalid, "", "message %.64q comes before %.64q", req.ToMessageID, req.FromMessageID).
				WithHint("from_message_id is the older one")
		}
	}
	return turns[from:max(from, to+1)], nil
}
