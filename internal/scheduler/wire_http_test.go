package scheduler

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(q *http.Request) (*http.Response, error) {
	var body []byte
	if q.Body != nil {
		var err error
		if body, err = io.ReadAll(q.Body); err != nil {
			return nil, err
		}
	}
	a := addressOf(q)
	if q.Method == http.MethodGet {
		return w.read(q, a)
	}
	what := q.Method + " " + a.resource
	if a.part != "" {
		what += "/" + a.part
	}
	w.mu.Lock()
	w.asked[what]++
	w.running[what]++
	n := 0
	for _, running := range w.running {
		n += running
	}
	w.atOnce = max(w.atOnce, n)
	trouble := w.trouble
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.running[what]--
		w.mu.Unlock()
	}()
	fate := wireFate{}
	if trouble != nil {
		fate = trouble(q.Context(), what)
	}
	if fate.late > 0 {
		time.Sleep(fate.late) // it goes on, whether or not the client waits
	}
	switch {
	case fate.err != nil:
		return nil, fate.err
	case fate.code != 0:
		return refusal(q, fate.code, http.StatusText(fate.code)), nil
	}
	w.mu.Lock()
	resp := w.write(q, a, body)
	w.mu.Unlock()
	if fate.lost {
		return nil, io.ErrUnexpectedEOF
	}
	return resp, q.Context().Err()
}

// address is the object of a request.
type address struct{ resource, namespace, name, part string }

func addressOf(q *http.Request) (a address) {
	parts := strings.Split(strings.Trim(q.URL.Path, "/"), "/")
	if parts[0] == "api" {
		parts = parts[2:]
	} else {
		parts = parts[3:]
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		a.namespace, parts = parts[1], parts[2:]
	}
	for i, into := range []*string{&a.resource, &a.name, &a.part} {
		if i < len(parts) {
			*into = parts[i]
		}
	}
	return a
}

func response(q *http.Request, code int, body io.ReadCloser) *http.Response {
	head := http.Header{"Content-Type": {"application/json"}}
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Header: head, Body: body, Request: q}
}

func answer(q *http.Request, code int, v any) *http.Response {
	return response(q, code, io.NopCloser(bytes.NewReader(jsonOf(v))))
}

// reasons are the reasons that an API server sends with its status codes.
var reasons = map[int]metav1.StatusReason{
	http.StatusForbidden:           metav1.StatusReasonForbidden,
	http.StatusNotFound:            metav1.StatusReasonNotFound,
	http.StatusGone:                metav1.StatusReasonExpired,
	http.StatusConflict:            metav1.StatusReasonConflict,
	http.StatusTooManyRequests:     metav1.StatusReasonTooManyRequests,
	http.StatusInternalServerError: metav1.StatusReasonInternalError,
	http.StatusServiceUnavailable:  metav1.StatusReasonServiceUnavailable,
}

func refusal(q *http.Request, code int, why string) *http.Response {
	resp := answer(q, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reasons[code], Message: why,
	})
	if code == http.StatusTooManyRequests {
		resp.Header.Set("Retry-After", "1") // as API Priority and Fairness does
	}
	return resp
}
