package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/keyutil"

	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
)

// A store is the files of one certificate and its key, where the kubelet has them. NAME is kubelet-client:
//
//	NAME-2006-01-02-15-04-05.pem    the certificate, those of intermediate authorities, and the key
//	NAME-current.pem                a symbolic link to the newest of these
//	NAME.crt, NAME.key              another program's files, used until the link exists
//	NAME.key.tmp                    the key of a request without an answer
//
// Each is complete after a crash at any moment. The kubelet continues with these files, and the agent with the
// kubelet's.
type store struct {
	dir, name         string
	certFile, keyFile string // a pair that somebody else put elsewhere, in use until there is the link; optional
}

func (s store) path(suffix string) string { return filepath.Join(s.dir, s.name+suffix) }

// current is the path of the newest pair.
func (s store) current() string { return s.path("-current.pem") }

// recover completes a replacement of the link that a kubelet began and a crash interrupted: it removes the link before
// it renames the new one.
func (s store) recover() error {
	if _, err := os.Lstat(s.current()); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := os.Rename(s.path("-updated.pem"), s.current())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// load reads the newest pair. The error is fs.ErrNotExist if there is none.
func (s store) load() (*tls.Certificate, error) {
	if err := s.recover(); err != nil {
		return nil, err
	}
	for _, files := range [][2]string{
		{s.current(), s.current()}, {s.certFile, s.keyFile}, {s.path(".crt"), s.path(".key")},
	} {
		if files[0] == "" {
			continue
		}
		pair, err := tls.LoadX509KeyPair(files[0], files[1])
		switch {
		case err == nil:
			return &pair, nil
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("read %s: %w", files[0], err)
		}
	}
	return nil, fmt.Errorf("%s: %w", s.current(), fs.ErrNotExist)
}

// save stores a pair and makes it the newest.
func (s store) save(chain, key []byte, now time.Time) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of the node's certificates: %w", err)
	}
	if info, err := os.Lstat(s.current()); err == nil && info.Mode()&fs.ModeSymlink == 0 {
		return fmt.Errorf("%s: want a symbolic link, as the kubelet has it; move the file away", s.current())
	}
	file := s.path(now.Format("-2006-01-02-15-04-05.pem"))
	if err := durable.Write(file, append(bytes.Clone(chain), key...)); err != nil {
		return err
	}
	target, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	return durable.Link(target, s.current())
}

// pending returns the key of the request without an answer, and makes one if there is none.
func (s store) pending() (crypto.Signer, []byte, error) {
	path := s.path(".key.tmp")
	if text, err := os.ReadFile(path); err == nil {
		if key, err := keyutil.ParsePrivateKeyPEM(text); err == nil {
			if signer, ok := key.(crypto.Signer); ok {
				return signer, text, nil
			}
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	text, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("create the directory of the node's certificates: %w", err)
	}
	return key, text, durable.Write(path, text)
}

// drop removes the key of the request without an answer.
func (s store) drop() error { return durable.Remove(s.path(".key.tmp")) }

// chainOf returns the certificates in a text, without headers and what is between them.
func chainOf(text []byte) (chain []byte) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return chain
		}
		if block.Type == "CERTIFICATE" {
			chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
		}
	}
}
