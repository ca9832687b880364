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
	tokenMark     = "mlg_" // so that scanners for leaked secrets can know one
	tokenLife     = 30 * 24 * time.Hour
	tokensPerUser = 64
	tokensPerName = 8 // where the caller asks for rotation
	maxTokenName  = 64
)

// AddToken makes a bearer token with the caller's rights, or some of them. The
// secret is in the answer and nowhere else.
func (d *Service) AddToken(ctx context.Context, who ipc.Caller, req ipc.TokenRequest) (ipc.NewToken, error) {
	const op = "add token"
	t := store.Token{OwnerUID: who.UID}
	t.ID, t.CreatedAt = ipc.TokenID(records.NewID("tk-")), d.opt.Now().UTC()
	var err error
	if t.Owner, err = d.owners.CallerName(who); err != nil {
		return ipc.NewToken{}, errs.Wrap(errs.Failed, op, err)
	}
	for _, set := range []func(context.Context, ipc.Caller, ipc.TokenRequest, *store.Token) error{d.nameToken, d.scopeToken, d.limitToken} {
		if err := set(ctx, who, req, &t); err != nil {
			return ipc.NewToken{}, errs.Wrap(errs.Invalid, op, err)
		}
	}
	var b [32]byte
	rand.Read(b[:]) // never fails
	secret := tokenMark + strings.TrimPrefix(string(t.ID), "tk-") + "_" + base64.RawURLEncoding.EncodeToString(b[:])
	sum := sha256.Sum256([]byte(secret))
	t.Hash = sum[:]
	if err := d.store.PutToken(ctx, t); err != nil {
		return ipc.NewToken{}, errs.Wrap(errs.Failed, op, err)
	}
	return ipc.NewToken{Token: t.Token, Secret: secret}, nil
}

func (d *Service) nameToken(ctx context.Context, who ipc.Caller, req ipc.TokenRequest, t *store.Token) error {
	t.Name = req.Name
	if len(req.Name) > maxTokenName || strings.ContainsFunc(req.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errs.New(errs.Invalid, "", "a token's name is at most %d bytes of one line", maxTokenName)
	}
	if err := d.store.DropTokens(ctx, d.opt.Now()); err != nil {
		return err
	}
	if req.Rotate {
		if err := d.rotate(ctx, who, req.Name); err != nil {
			return err
		}
	}
	mine, err := d.tokensOf(ctx, who)
	if err == nil && len(mine) >= tokensPerUser {
		err = errs.New(errs.Denied, "", "%s has %d tokens already", t.Owner, len(mine)).
			WithHint("revoke some: mulligan token list, mulligan token revoke ID")
	}
	return err
}

// rotate ends the oldest tokens of a name, so that there is room for one more.
func (d *Service) rotate(ctx context.Context, who ipc.Caller, name string) error {
	mine, err := d.tokensOf(ctx, who)
	mine = slices.DeleteFunc(mine, func(t store.Token) bool { return t.Name != name })
	for ; err == nil && len(mine) >= tokensPerName; mine = mine[1:] {
		err = d.RevokeToken(ctx, who, mine[0].ID)
	}
	return err
}

func (d *Service) tokensOf(ctx context.Context, who ipc.Caller) ([]store.Token, error) {
	mine, err := d.made(who)
	if err != nil {
		return nil, err
	}
	all, err := d.store.Tokens(ctx)
	return slices.DeleteFunc(all, func(t store.Token) bool { return !mine(t) }), err
}

// made returns what tells which tokens are the caller's, and not those of
// somebody who had the uid before.
func (d *Service) made(who ipc.Caller) (func(store.Token) bool, error) {
	name, err := d.owners.CallerName(who)
	return func(t store.Token) bool { return t.OwnerUID == who.UID && t.Owner == name }, err
}

func (d *Service) scopeToken(_ context.Context, who ipc.Caller, req ipc.TokenRequest, t *store.Token) error {
	t.Scopes = req.Scopes
	if len(t.Scopes) == 0 {
		t.Scopes = []ipc.Scope{ipc.ScopeRead}
	}
	for _, s := range t.Scopes {
		if !slices.Contains(ipc.Scopes, s) {
			return errs.New(errs.Invalid, "", "unknown scope %.64q", string(s)).WithHint("use read, write, manage or metrics")
		}
		if s == ipc.ScopeMetrics && !d.owners.Administers(who) {
			return errs.New(errs.Denied, "", "metrics cover all apps, and only root may see those").
				WithHint("ask an administrator: mulligan token add --scope metrics")
		}
	}
	return nil
}

func (d *Service) limitToken(_ context.Context, who ipc.Caller, req ipc.TokenRequest, t *store.Token) error {
	t.Apps = []ipc.AppID{}
	for _, ref := range req.Apps {
		a, err := d.apps.Find(who, ref)
		if err != nil {
			return err
		}
		t.Apps = append(t.Apps, a.Rec().ID)
	}
	life := tokenLife
	if req.Expires != "" {
		var err error
		if life, err = time.ParseDuration(req.Expires); err != nil || life < 0 {
			return errs.New(errs.Invalid, "", "expires %.64q is not a time", req.Expires).WithHint(`write hours, like "720h"; "0" is never`)
		}
	}
	if life > 0 {
		at := t.CreatedAt.Add(life)
		t.ExpiresAt = &at
	}
	return nil
}

// Tokens lists the caller's tokens; root, and the owner of a user's daemon, see all.
func (d *Service) Tokens(ctx context.Context, who ipc.Caller) (ipc.TokenList, error) {
	list := ipc.TokenList{Tokens: []ipc.Token{}}
	mine, err := d.made(who)
	if err != nil {
		return list, err
	}
	all, err := d.store.Tokens(ctx)
	for _, t := range all {
		if mine(t) || d.owners.Administers(who) {
			list.Tokens = append(list.Tokens, t.Token)
		}
	}
	return list, err
}

// RevokeToken ends a token, and cuts off whoever is being answered by it.
func (d *Service) RevokeToken(ctx context.Context, who ipc.Caller, id ipc.TokenID) error {
	const op = "revoke token"
	mine, err := d.made(who)
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	t, err := d.store.Token(ctx, id)
	if err == nil && !mine(t) && !d.owners.Administers(who) {
		err = errs.New(errs.NotFound, "", "no token %.64q", string(id)).WithHint("mulligan token list shows those there are")
	}
	if err == nil {
		err = d.store.DeleteToken(ctx, id)
	}
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	d.gate.Revoke(id)
	return nil
}

// bearer finds who a token stands for. Whatever is wrong with it, the answer is
// the same.
func (d *Service) bearer(ctx context.Context, secret string) (ipc.Caller, error) {
	no := errs.New(errs.Unauthenticated, "admit", "this token is not valid, or no longer").WithHint("make another: mulligan token add")
	id, _, ok := strings.Cut(strings.TrimPrefix(secret, tokenMark), "_")
	if !ok || len(secret) > 256 || !strings.HasPrefix(secret, tokenMark) {
		return ipc.Caller{}, no
	}
	t, err := d.store.Token(ctx, ipc.TokenID("tk-"+id))
	if errs.KindOf(err) == errs.NotFound {
		return ipc.Caller{}, no
	}
	if err != nil {
		return ipc.Caller{}, err
	}
	sum := sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(sum[:], t.Hash) != 1 || t.ExpiresAt != nil && !d.opt.Now().Before(*t.ExpiresAt) {
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
