package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

// Tests marked [Disruptive] log in to the node by ssh. There they look for mounts below /var/lib/kubelet, and stop and
// start the kubelet with systemctl. This machine need not have systemd or sshd, so nodeShell answers them.

const (
	sshPort = "22" // where the tests expect it
	sshUser = "root"
	// startTimeout bounds how long the agent may take until it runs again after a start.
	startTimeout = 30 * time.Second
)

// nodeShell serves ssh on the node's address. It runs commands as root, where the agent's directory is at
// /var/lib/kubelet. `systemctl stop kubelet` suspends the agent's process, and `start` kills it, so that the supervisor
// starts a new one: between them the agent does nothing, and what it knew is lost.
type nodeShell struct {
	k      *cluster
	config *ssh.ServerConfig

	mu        sync.Mutex
	suspended int // PID of the agent that was stopped; 0: it runs
}

// serveShell serves until ctx ends. Only the holder of the key in k.sshKey() may log in.
func serveShell(ctx context.Context, k *cluster) error {
	_, hostKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	host, err := ssh.NewSignerFromSigner(hostKey)
	if err != nil {
		return err
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	allowed, err := ssh.NewPublicKey(public)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(private, "conformance")
	if err != nil {
		return err
	}
	if err := os.WriteFile(k.sshKey(), pem.EncodeToMemory(block), 0o600); err != nil {
		return err
	}
	s := &nodeShell{k: k, config: &ssh.ServerConfig{
		PublicKeyCallback: func(c ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if c.User() != sshUser || !bytes.Equal(key.Marshal(), allowed.Marshal()) {
				return nil, errors.New("only the suite may log in")
			}
			return nil, nil
		},
	}}
	s.config.AddHostKey(host)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(nodeIP, sshPort))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serve(ctx, c)
		}
	}()
	return nil
}

func (k *cluster) sshKey() string { return filepath.Join(k.dir, "ssh.key") }

// serve answers one connection.
func (s *nodeShell) serve(ctx context.Context, c net.Conn) {
	defer c.Close()
	_, channels, requests, err := ssh.NewServerConn(c, s.config)
	if err != nil {
		progress("ssh: %v", err)
		return
	}
	go ssh.DiscardRequests(requests)
	for asked := range channels {
		if asked.ChannelType() != "session" {
			_ = asked.Reject(ssh.UnknownChannelType, "want a session")
			continue
		}
		session, requests, err := asked.Accept()
		if err != nil {
			return
		}
		go s.session(ctx, session, requests)
	}
}

// session runs the command of a session (RFC 4254, 6.5 and 6.10).
func (s *nodeShell) session(ctx context.Context, session ssh.Channel, requests <-chan *ssh.Request) {
	defer session.Close()
	for r := range requests {
		var command struct{ Text string }
		if r.Type != "exec" || ssh.Unmarshal(r.Payload, &command) != nil {
			_ = r.Reply(false, nil)
			continue
		}
		_ = r.Reply(true, nil)
		var stdout, stderr bytes.Buffer
		code := s.run(ctx, command.Text, &stdout, &stderr)
		progress("ssh: %s: exit code %d", command.Text, code)
		_, _ = session.Write(stdout.Bytes()) // an error means that the client is gone
		_, _ = session.Stderr().Write(stderr.Bytes())
		_, _ = session.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(code)}))
		return
	}
}

// run runs one command, and returns its exit code.
func (s *nodeShell) run(ctx context.Context, command string, stdout, stderr *bytes.Buffer) int {
	var err error
	switch strings.TrimPrefix(command, "sudo ") {
	case "systemctl stop kubelet":
		err = s.stop(ctx)
	case "systemctl start kubelet":
		err = s.start(ctx)
	case "systemctl show kubelet --property ActiveState --value":
		state := "active"
		if s.isStopped() {
			state = "inactive"
		}
		fmt.Fprintln(stdout, state)
	default:
		return s.execute(ctx, command, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// execute has a shell run a command in a mount namespace of its own.
func (s *nodeShell) execute(ctx context.Context, command string, stdout, stderr *bytes.Buffer) int {
	const script = `mount -t tmpfs none /var/lib && mkdir /var/lib/kubelet && mount --rbind "$0" /var/lib/kubelet || exit 125
sudo() { "$@"; }
eval "$1"`
	c := exec.CommandContext(ctx, "unshare", "--mount", "sh", "-c", script, s.k.agentRoot(), command)
	c.Stdout, c.Stderr = stdout, stderr
	var exit *exec.ExitError
	if err := c.Run(); err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(stderr, err)
		return 126
	}
	return c.ProcessState.ExitCode()
}

func (s *nodeShell) isStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspended != 0
}

func (s *nodeShell) stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspended != 0 {
		return nil
	}
	pid, err := s.agent(ctx)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop the agent, pid %d: %w", pid, err)
	}
	s.suspended = pid
	return nil
}

func (s *nodeShell) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.suspended
	if was == 0 {
		return nil
	}
	if err := syscall.Kill(was, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the agent, pid %d: %w", was, err)
	}
	s.suspended = 0
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		pid, err := s.agent(ctx)
		if err == nil && pid != was {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the agent, pid %d, was not started again within %v", was, startTimeout), err)
		}
	}
}

// agent returns the PID of the node's agent.
func (s *nodeShell) agent(ctx context.Context) (int, error) {
	c := exec.CommandContext(ctx, s.k.plimsoll, "status", "--output", "json", "--instance", s.k.name, "--state-dir",
		s.k.state())
	out, failed := c.Output() // it fails while something is not healthy, but prints its result
	var status struct {
		Children []struct {
			Name string
			PID  int
		}
	}
	if err := json.Unmarshal(out, &status); err != nil {
		return 0, errors.Join(fmt.Errorf("read status: %w", err), failed)
	}
	for _, child := range status.Children {
		if child.Name == "agent" && child.PID > 0 {
			return child.PID, nil
		}
	}
	return 0, fmt.Errorf("status names no running agent: %s", out)
}
