package lab

import "sync"

// tail keeps the end of what is written to it. It is safe for concurrent use.
type tail struct {
	max int // bytes

	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if surplus := len(t.text) - t.max; surplus > t.max { // rarely, so that each byte is moved at most once
		t.text = append(t.text[:0], t.text[surplus:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	if t == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text[max(0, len(t.text)-t.max):])
}
