package scheduler

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
)

// read answers lists, watches and reads of one object.
func (w *wire) read(q *http.Request, a address) (*http.Response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	query := q.URL.Query()
	if w.unread != nil {
		if code := w.unread(q, a.resource); code != 0 {
			return refusal(q, code, http.StatusText(code)), nil
		}
	}
	switch {
	case w.detached:
		return nil, io.ErrUnexpectedEOF
	case w.missing[a.resource]:
		return refusal(q, http.StatusNotFound, "the server could not find the requested resource"), nil
	case query.Get("sendInitialEvents") == "true":
		return refusal(q, http.StatusUnprocessableEntity, "list, please"), nil
	case query.Get("watch") != "":
		from, err := strconv.Atoi(query.Get("resourceVersion"))
		if err != nil {
			return nil, err
		}
		if from < w.floor {
			return refusal(q, http.StatusGone, "too old resource version"), nil
		}
		return response(q, http.StatusOK, &wireWatch{
			w: w, ctx: q.Context(), resource: a.resource, from: from, cut: w.cut, closed: make(chan struct{}),
		}), nil
	case a.name != "":
		if o := w.objects[a.resource][a.namespace+"/"+a.name]; o != nil {
			return answer(q, http.StatusOK, o), nil
		}
		return refusal(q, http.StatusNotFound, a.name), nil
	}
	items := []object{}
	for _, o := range w.objects[a.resource] {
		items = append(items, o)
	}
	return answer(q, http.StatusOK, map[string]any{
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(w.version)}, "items": items,
	}), nil
}

// wireWatch is the body of the answer to a watch.
type wireWatch struct {
	w        *wire
	ctx      context.Context
	resource string
	from     int
	left     []byte
	cut      chan struct{}
	once     sync.Once
	closed   chan struct{}
}

func (r *wireWatch) Read(b []byte) (int, error) {
	for len(r.left) == 0 {
		r.w.mu.Lock()
		changed := r.w.changed
		i := slices.IndexFunc(r.w.changes, func(c wireChange) bool {
			return c.resource == r.resource && c.version > r.from
		})
		if i >= 0 {
			r.left, r.from = r.w.changes[i].line, r.w.changes[i].version
		}
		r.w.mu.Unlock()
		if i >= 0 {
			break
		}
		select {
		case <-changed:
		case <-r.cut:
			return 0, io.EOF
		case <-r.closed:
			return 0, io.EOF
		case <-r.ctx.Done():
			return 0, r.ctx.Err()
		}
	}
	n := copy(b, r.left)
	r.left = r.left[n:]
	return n, nil
}

func (r *wireWatch) Close() error {
	r.once.Do(func() { close(r.closed) })
	return nil
}
