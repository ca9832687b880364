package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

const (
	tokenMark     = "mlg_" // lets scanners for leaked secrets recognize a token
	tokenLife     = 30 * 24 * time.Hour
	tokensPerUser = 64
	tokensPerName = 8 // if the caller asks for rotation
	maxTokenName  = 64
)

// AddToken makes a bearer token with all or some of the caller's rights. The secret is in the answer and is not stored.
func (svc *Service) AddToken(ctx context.Context, who ipc.Caller, req ipc.TokenRequest) (ipc.NewToken, error) {
	const op = "add token"
	t := store.Token{OwnerUID: who.UID}
	t.ID, t.CreatedAt = ipc.TokenID(records.NewID("tk-")), svc.opt.Now().UTC()
	var err error
	if t.Owner, err = svc.owners.CallerName(who); err != nil {
		return ipc.NewToken{}, errs.Wrap(errs.Failed, op, err)
	}
	for _, set := range []func(context.Context, ipc.Caller, ipc.TokenRequest, *store.Token) error{svc.nameToken, svc.scopeToken, svc.limitToken} {
		if err := set(ctx, who, req, &t); err != nil {
			return ipc.NewToken{}, errs.Wrap(errs.Invalid, op, err)
		}
	}
	var b [32]byte
	rand.Read(b[:]) // never fails
	secret := tokenMark + strings.TrimPrefix(string(t.ID), "tk-") + "_" + base64.RawURLEncoding.EncodeToString(b[:])
	sum := sha256.Sum256([]byte(secret))
	t.Hash = sum[:]
	if err := svc.store.PutToken(ctx, t); err != nil {
		return ipc.NewToken{}, errs.Wrap(errs.Failed, op, err)
	}
	return ipc.NewToken{Token: t.Token, Secret: secret}, nil
}

func (svc *Service) nameToken(ctx context.Context, who ipc.Caller, req ipc.TokenRequest, t *store.Token) error {
	t.Name = req.Name
	if len(req.Name) > maxTokenName || strings.ContainsFunc(req.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errs.New(errs.Invalid, "", "a token's name is at most %d bytes of one line", maxTokenName)
	}
	if err := svc.store.DropTokens(ctx, svc.opt.Now()); err != nil {
		return err
	}
	if req.Rotate {
		if err := svc.rotate(ctx, who, req.Name); err != nil {
			return err
		}
	}
	mine, err := svc.tokensOf(ctx, who)
	if err == nil && len(mine) >= tokensPerUser {
		err = errs.New(errs.Denied, "", "%s has %d tokens already", t.Owner, len(mine)).
			WithHint("revoke some: `mulligan token list`, `mulligan token revoke ID`")
	}
	return err
}

// rotate deletes the oldest tokens of a name, so that there is room for one more.
func (svc *Service) rotate(ctx context.Context, who ipc.Caller, name string) error {
	mine, err := svc.tokensOf(ctx, who)
	mine = slices.DeleteFunc(mine, func(t store.Token) bool { return t.Name != name })
	for ; err == nil && len(mine) >= tokensPerName; mine = mine[1:] {
		err = svc.RevokeToken(ctx, who, mine[0].ID)
	}
	return err
}

func (svc *Service) tokensOf(ctx context.Context, who ipc.Caller) ([]store.Token, error) {
	mine, err := svc.made(who)
	if err != nil {
		return nil, err
	}
	all, err := svc.store.Tokens(ctx)
	return slices.DeleteFunc(all, func(t store.Token) bool { return !mine(t) }), err
}

// made returns a function that reports whether a token is the caller's, and not that of an earlier owner of the uid.
func (svc *Service) made(who ipc.Caller) (func(store.Token) bool, error) {
	name, err := svc.owners.CallerName(who)
	return func(t store.Token) bool { return t.OwnerUID == who.UID && t.Owner == name }, err
}

func (svc *Service) scopeToken(_ context.Context, who ipc.Caller, req ipc.TokenRequest, t *store.Token) error {
	t.Scopes = req.Scopes
	if len(t.Scopes) == 0 {
		t.Scopes = []ipc.Scope{ipc.ScopeRead}
	}
	for _, s := range t.Scopes {
		if !slices.Contains(ipc.Scopes, s) {
			return errs.New(errs.Invalid, "", "unknown scope %.64q", string(s)).WithHint("use read, write, manage or metrics")
		}
		if s == ipc.ScopeMetrics && !svc.owners.Administers(who) {
			return errs.New(errs.Denied, "", "metrics cover all apps, and only root may see those").
				WithHint("ask an administrator: `mulligan token add --scope metrics`")
		}
	}
	return nil
}

func (svc *Service) limitToken(_ context.Context, who ipc.Caller, req ipc.TokenRequest, t *store.Token) error {
	t.Apps = []ipc.AppID{}
	for _, ref := range req.Apps {
		a, err := svc.apps.Find(who, ref)
		if err != nil {
			return err
		}
		t.Apps = append(t.Apps, a.Rec().ID)
	}
	life := tokenLife
	if req.Expires != "" {
		var err error
		if life, err = time.ParseDuration(req.Expires); err != nil || life < 0 {
			return errs.New(errs.Invalid, "", "expires %.64q is not a duration", req.Expires).WithHint(`write hours, as in "720h"; "0" means never`)
		}
	}
	if life > 0 {
		at := t.CreatedAt.Add(life)
		t.ExpiresAt = &at
	}
	return nil
}

// Tokens lists the caller's tokens; root, and the owner of a user's daemon, see all.
func (svc *Service) Tokens(ctx context.Context, who ipc.Caller) (ipc.TokenList, error) {
	list := ipc.TokenList{Tokens: []ipc.Token{}}
	mine, err := svc.made(who)
	if err != nil {
		return list, err
	}
	all, err := svc.store.Tokens(ctx)
	for _, t := range all {
		if mine(t) || svc.owners.Administers(who) {
			list.Tokens = append(list.Tokens, t.Token)
		}
	}
	return list, err
}

// RevokeToken deletes a token and closes the connections that use it.
func (svc *Service) RevokeToken(ctx context.Context, who ipc.Caller, id ipc.TokenID) error {
	const op = "revoke token"
	mine, err := svc.made(who)
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	t, err := svc.store.Token(ctx, id)
	if err == nil && !mine(t) && !svc.owners.Administers(who) {
		err = errs.New(errs.NotFound, "", "no token %.64q", string(id)).WithHint("`mulligan token list` shows the tokens")
	}
	if err == nil {
		err = svc.store.DeleteToken(ctx, id)
	}
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	svc.gate.Revoke(id)
	return nil
}

// bearer returns the caller of a token. It returns the same error for every invalid token.
func (svc *Service) bearer(ctx context.Context, secret string) (ipc.Caller, error) {
	no := errs.New(errs.Unauthenticated, "admit", "this token is unknown, has expired or was revoked").WithHint("make another: `mulligan token add`")
	id, _, ok := strings.Cut(strings.TrimPrefix(secret, tokenMark), "_")
	if !ok || len(secret) > 256 || !strings.HasPrefix(secret, tokenMark) {
		return ipc.Caller{}, no
	}
	t, err := svc.store.Token(ctx, ipc.TokenID("tk-"+id))
	if errs.KindOf(err) == errs.NotFound {
		return ipc.Caller{}, no
	}
	if err != nil {
		return ipc.Caller{}, err
	}
	sum := sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(sum[:], t.Hash) != 1 || t.ExpiresAt != nil && !svc.opt.Now().Before(*t.ExpiresAt) {
		return ipc.Caller{}, no
	}
	who := ipc.Caller{UID: t.OwnerUID, GID: -1, Name: t.Owner, Via: "token " + t.Name, Grant: &ipc.Grant{Token: t.ID, Scopes: t.Scopes, Apps: t.Apps}}
	if t.Name == "" {
		who.Via = string(t.ID)
	}
	if t.ExpiresAt != nil {
		who.Grant.Until = *t.ExpiresAt
	}
	return who, nil
}
