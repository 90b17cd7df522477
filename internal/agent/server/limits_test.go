package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestLimitsFor: for any number of descriptors the server uses at most half, and with few descriptors it still serves
// some clients.
func TestLimitsFor(t *testing.T) {
	for files, want := range map[uint64]limits{
		1024:    {connections: 256, streams: 128, streamsPerPod: 32},
		20000:   {connections: connectionsMax, streams: streamsMax, streamsPerPod: streamsPerPodMax},
		1 << 63: {connections: connectionsMax, streams: streamsMax, streamsPerPod: streamsPerPodMax},
		8:       {connections: 2, streams: 1, streamsPerPod: 1},
	} {
		if got := limitsFor(files); got != want {
			t.Errorf("%d descriptors: %+v, want %+v", files, got, want)
		}
	}
	for files := uint64(8); files < 1<<20; files += files / 3 {
		if l := limitsFor(files); uint64(l.connections+2*l.streams) > files/2 {
			t.Errorf("%d descriptors: %+v takes more than half of them", files, l)
		}
	}
	if files, err := descriptorsMax(); err != nil || files == 0 {
		t.Errorf("this process: %d, %v", files, err)
	}
}

// TestStreamsAreBounded: one pod's streams leave room for another pod's, the sum of all is bounded, and a stream that
// ends frees its slot.
func TestStreamsAreBounded(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Descriptors = 64 }) // 8 streams, 2 for each pod
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		r.pods.pods = append(r.pods.pods, testPod(name, "c"))
		r.pods.set("ns/"+name+"/c", Container{ID: name, State: Running})
	}
	open := func(pod, want string) net.Conn {
		t.Helper()
		conn, head := r.upgrade(t, "/exec/ns/"+pod+"/c?output=1", "SPDY/3.1")
		if !strings.HasPrefix(head, "HTTP/1.1 "+want) {
			t.Errorf("stream to %s: %q, want %s", pod, head, want)
		}
		return conn
	}
	last := open("a", "101")
	open("a", "101")
	open("a", "429")
	if status, body := r.do(t, "POST", "/run/ns/a/c?cmd=ls"); status != 429 ||
		!strings.Contains(body, "all 2 streams of this pod are open") {
		t.Errorf("run in a pod that is full: %d %s", status, body)
	}
	for _, pod := range []string{"b", "c", "d"} {
		open(pod, "101")
		open(pod, "101")
	}
	open("e", "429")
	if status, body := r.do(t, "GET", "/containerLogs/ns/e/c"); status != 429 ||
		!strings.Contains(body, "all 8 streams of this node are open") {
		t.Errorf("a log on a full node: %d %s", status, body)
	}
	_, body := r.do(t, "GET", "/metrics")
	for _, want := range []string{
		`kubelet_http_streams{path="exec"} 8`, `kubelet_http_streams_refused_total{limit="pod",path="exec"} 1`,
		`kubelet_http_streams_refused_total{limit="pod",path="run"} 1`,
		`kubelet_http_streams_refused_total{limit="node",path="exec"} 1`,
		`kubelet_http_streams_refused_total{limit="node",path="containerLogs"} 1`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("%s is not among the metrics", want)
		}
	}
	last.Close()
	// no log, but the request takes a slot
	for status := 0; status != 400; status, _ = r.do(t, "GET", "/containerLogs/ns/e/c") {
		if t.Context().Err() != nil {
			t.Fatal("the slot of a stream that ended is not given back")
		}
	}
}

// TestStrangersLeaveRoom: a flood of unauthenticated connections, most of them in the middle of a request, does not
// keep authenticated clients out, does not end their streams, and never takes more descriptors than the limit.
func TestStrangersLeaveRoom(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Descriptors = 64 }) // 16 connections
	r.pods.pods = []*corev1.Pod{testPod("p", "c")}
	r.pods.set("ns/p/c", Container{ID: "c1", State: Running})
	stream, head := r.upgrade(t, "/exec/ns/p/c?output=1&input=1", "SPDY/3.1")
	if !strings.HasPrefix(head, "HTTP/1.1 101") {
		t.Fatal(head)
	}
	var flood []net.Conn
	for range 100 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.base, "https://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.Write([]byte{22, 3, 1}) // the beginning of a handshake
		flood = append(flood, conn)
	}
	fresh := &http.Client{Transport: &http.Transport{TLSClientConfig: r.tls}}
	defer fresh.CloseIdleConnections()
	answer, err := fresh.Get(r.base + "/healthz")
	if err != nil || answer.StatusCode != 200 {
		t.Fatalf("somebody known is kept out: %v", err)
	}
	answer.Body.Close()
	fmt.Fprint(stream, "still here")
	want := "POST /exec/token v4.channel.k8s.io\nearly still here"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(stream, got); err != nil || string(got) != want {
		t.Errorf("the stream of somebody known shows %q, %v", got, err)
	}
	open := 0
	end := time.Now().Add(headerTime / 2) // after headerTime each would be closed anyway
	for _, conn := range flood[:80] {
		conn.SetReadDeadline(end)
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, io.EOF) ||
			err != nil && strings.Contains(err.Error(), "reset") {
			continue
		}
		open++
	}
	if open > 0 {
		t.Errorf("%d of the first 80 strangers are still connected", open)
	}
}

// TestIdleStreamsEnd: a byte in either direction keeps a stream open; without any it is closed.
func TestIdleStreamsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, front := net.Pipe()
		runtime, back := net.Pipe()
		ended := make(chan error, 1)
		start := time.Now()
		go func() { ended <- splice(t.Context(), front, front, back, back, time.Hour) }()
		pass := func(from, to net.Conn) {
			t.Helper()
			time.Sleep(59 * time.Minute)
			go from.Write([]byte("x"))
			if _, err := to.Read(make([]byte, 1)); err != nil {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
		}
		pass(client, runtime)
		pass(runtime, client)
		pass(client, runtime)
		if err := <-ended; !errors.Is(err, errIdle) {
			t.Errorf("ends with %v", err)
		}
		if took := time.Since(start); took != 3*59*time.Minute+time.Hour {
			t.Errorf("ends after %v, an hour after the last byte is %v", took, 3*59*time.Minute+time.Hour)
		}
		if _, err := client.Read(make([]byte, 1)); err == nil {
			t.Error("the client's connection is still open")
		}
	})
}

// TestIdleTimeoutIsTheConfigurations: the configured timeout is used.
func TestIdleTimeoutIsTheConfigurations(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.Config.StreamingConnectionIdleTimeout = metav1.Duration{Duration: 20 * time.Millisecond}
	})
	r.pods.pods = []*corev1.Pod{testPod("p", "c")}
	r.pods.set("ns/p/c", Container{ID: "c1", State: Running})
	conn, head := r.upgrade(t, "/exec/ns/p/c?output=1", "SPDY/3.1")
	if !strings.HasPrefix(head, "HTTP/1.1 101") {
		t.Fatal(head)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") &&
		!strings.Contains(err.Error(), "EOF") {
		t.Errorf("an idle stream does not end: %v", err) // the rig's connections time out after 10 s
	}
}

// TestRefusalsAreBrief: neither the log nor an answer repeats all of a refused request.
func TestRefusalsAreBrief(t *testing.T) {
	r := newRig(t, nil)
	long := strings.Repeat("x", 100000)
	if status, body := r.do(t, "GET", "/"+long+"/../y"); status != 400 || len(body) > 2000 {
		t.Errorf("a long path that is not clean: %d, %d bytes", status, len(body))
	}
	r.tls.Certificates = nil
	if status, body := r.do(t, "GET", "/"+long); status != 401 && status != 404 || len(body) > 2000 {
		t.Errorf("a long path of nobody: %d, %d bytes", status, len(body))
	}
}
