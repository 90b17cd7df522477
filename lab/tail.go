package lab

import "sync"

// tail keeps the end of what is written to it.
type tail struct {
	max int // bytes

	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if surplus := len(t.text) - t.max; surplus > t.max { // seldom, so that each byte is moved once at most
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
