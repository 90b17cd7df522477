package authn

import (
	"container/list"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync"
	"time"
)

const (
	// reviewTimeout bounds one review by the API server. Upstream: 10 s.
	reviewTimeout = 10 * time.Second
	// pendingMax bounds the reviews in flight, so that a flood of invented tokens cannot accumulate goroutines. Chosen:
	// ten times what the API server would answer in the time of one review.
	pendingMax = 64
)

// digest identifies a question without containing it.
type digest [sha256.Size]byte

// reviews sends a question once, however many callers have it at the same time, and caches the answer for as long as
// keep says. Good and bad answers are bounded separately; the least recently used is dropped first. Errors are not
// cached.
type reviews[T any] struct {
	now  func() time.Time                       // the time
	keep func(T) (good bool, ttl time.Duration) // whether an answer is good, and how long it is cached
	// random per process, so that the digests of one process mean nothing to another
	salt []byte

	// mu guards what follows.
	mu      sync.Mutex
	caches  [2]answerCache[T]       // of bad answers and of good ones
	pending map[digest]*question[T] // reviews in flight
}

type answerCache[T any] struct {
	max   int
	items map[digest]*list.Element // of *answer[T]
	order *list.List               // most recently used first
}

type answer[T any] struct {
	key     digest
	value   T
	expires time.Time
}

type question[T any] struct {
	done  chan struct{} // closed when value and err are set
	value T
	err   error
}

func newReviews[T any](now func() time.Time, limit int, keep func(T) (bool, time.Duration)) *reviews[T] {
	r := &reviews[T]{now: now, keep: keep, salt: make([]byte, sha256.Size), pending: map[digest]*question[T]{}}
	rand.Read(r.salt) // never fails: crypto/rand ends the program instead
	for i := range r.caches {
		r.caches[i] = answerCache[T]{limit, map[digest]*list.Element{}, list.New()}
	}
	return r
}

// digest hashes the parts of a key, each after its length, so that different lists of parts have different input.
func (r *reviews[T]) digest(parts []string) digest {
	mac := hmac.New(sha256.New, r.salt)
	var length [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(length[:], uint64(len(p)))
		mac.Write(length[:])
		mac.Write([]byte(p))
	}
	return digest(mac.Sum(nil))
}

// remembered returns the cached answer that has not expired, if there is one.
func (r *reviews[T]) remembered(key []string) (value T, known bool) {
	d := r.digest(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.find(d)
}

func (r *reviews[T]) find(d digest) (value T, known bool) {
	for i := range r.caches {
		s := &r.caches[i]
		e, ok := s.items[d]
		if !ok {
			continue
		}
		a := e.Value.(*answer[T])
		if r.now().Before(a.expires) {
			s.order.MoveToFront(e)
			return a.value, true
		}
		s.drop(e)
	}
	return value, false
}

func (s *answerCache[T]) drop(e *list.Element) {
	delete(s.items, e.Value.(*answer[T]).key)
	s.order.Remove(e)
}

// ask returns the cached answer to key, or gets it with review. The review continues when the caller's context ends,
// since other callers may be waiting for it.
func (r *reviews[T]) ask(ctx context.Context, key []string, review func(context.Context) (T, error)) (T, error) {
	d := r.digest(key)
	r.mu.Lock()
	if v, known := r.find(d); known {
		r.mu.Unlock()
		return v, nil
	}
	q, asked := r.pending[d]
	if !asked {
		if len(r.pending) >= pendingMax {
			r.mu.Unlock()
			var none T
			return none, fmt.Errorf("%d reviews are already waiting for the API server", pendingMax)
		}
		q = &question[T]{done: make(chan struct{})}
		r.pending[d] = q
		go r.put(context.WithoutCancel(ctx), d, q, review)
	}
	r.mu.Unlock()
	select {
	case <-q.done:
		return q.value, q.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

func (r *reviews[T]) put(ctx context.Context, d digest, q *question[T], review func(context.Context) (T, error)) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	q.value, q.err = review(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, d)
	if q.err == nil {
		r.remember(d, q.value)
	}
	close(q.done)
}

func (r *reviews[T]) remember(d digest, value T) {
	good, ttl := r.keep(value)
	if ttl <= 0 {
		return
	}
	s := &r.caches[pick(good, 1, 0)]
	for len(s.items) >= s.max {
		s.drop(s.order.Back())
	}
	s.items[d] = s.order.PushFront(&answer[T]{d, value, r.now().Add(ttl)})
}
