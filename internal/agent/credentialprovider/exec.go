package credentialprovider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	pluginv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

const (
	// callMax is how long a plugin may take: upstream's pluginExecTimeout.
	callMax = time.Minute

	// pipesMax is how long to wait for a plugin's output after it was killed. Chosen.
	pipesMax = time.Second

	// outputMax bounds an answer, in bytes. Chosen: a thousand registries with long tokens.
	outputMax = 1 << 20

	// errorMax bounds what is quoted of a plugin's standard error, in bytes. Chosen: it stands in a pod's status.
	errorMax = 512
)

// call runs the plugin once.
func (p *plugin) call(ctx context.Context,
	request *pluginv1.CredentialProviderRequest) (*pluginv1.CredentialProviderResponse, error) {
	text, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, callMax, fmt.Errorf("no answer within %s", callMax))
	defer cancel()
	out := &bounded{max: outputMax}
	complaint := &bounded{max: errorMax}
	c := exec.CommandContext(ctx, p.path, p.Args...)
	c.Env = os.Environ()
	for _, v := range p.Env {
		c.Env = append(c.Env, v.Name+"="+v.Value)
	}
	c.Stdin = bytes.NewReader(text)
	c.Stdout = out
	c.Stderr = complaint
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that what it started ends with it
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = pipesMax
	begun := time.Now()
	err = c.Run()
	p.ran(p.Name, time.Since(begun), err)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case out.over:
		return nil, fmt.Errorf("its answer is longer than %d bytes", outputMax)
	case err != nil && complaint.text.Len() > 0:
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(strings.ToValidUTF8(complaint.text.String(), "?")))
	case err != nil:
		return nil, err
	}
	return p.decode(out.text.Bytes())
}

func (p *plugin) decode(text []byte) (*pluginv1.CredentialProviderResponse, error) {
	response := &pluginv1.CredentialProviderResponse{}
	if err := json.Unmarshal(text, response); err != nil {
		return nil, fmt.Errorf("read its answer: %w", err)
	}
	if response.APIVersion != p.APIVersion || response.Kind != "CredentialProviderResponse" {
		return nil, fmt.Errorf("its answer is a %.100q of %.100q, want a CredentialProviderResponse of %s", response.Kind,
			response.APIVersion, p.APIVersion)
	}
	switch response.CacheKeyType {
	case pluginv1.ImagePluginCacheKeyType, pluginv1.RegistryPluginCacheKeyType, pluginv1.GlobalPluginCacheKeyType:
	default:
		return nil, fmt.Errorf("its answer has cacheKeyType %.100q, want Image, Registry or Global", response.CacheKeyType)
	}
	if response.CacheDuration != nil && response.CacheDuration.Duration < 0 {
		return nil, fmt.Errorf("its answer has cacheDuration %s, want zero or more", response.CacheDuration.Duration)
	}
	return response, nil
}

// errOver ends a plugin that writes more than is read.
var errOver = errors.New("too long")

// bounded keeps the first max bytes of what is written to it.
type bounded struct {
	text bytes.Buffer
	max  int
	over bool // more was written
}

func (b *bounded) Write(p []byte) (int, error) {
	room := b.max - b.text.Len()
	b.text.Write(p[:min(len(p), room)])
	if len(p) <= room {
		return len(p), nil
	}
	b.over = true
	if b.max == outputMax {
		return room, errOver // exec closes the pipe: the plugin gets SIGPIPE
	}
	return len(p), nil // an error message is cut, and the plugin goes on
}
