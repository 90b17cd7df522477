package podcert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// Types of the blocks of a bundle (RFC 7468).
const (
	typeKey         = "PRIVATE KEY"
	typeCertificate = "CERTIFICATE"
)

// Credentials are a key and the certificate that was issued to it, both as PEM. The key is in memory and in the files
// of its pod, and nowhere else.
type Credentials struct {
	Key   []byte
	Chain []byte // the certificate, and those of intermediate authorities
}

// Bundle returns both in one text: the key, then the chain.
func (c Credentials) Bundle() []byte {
	return append(append(make([]byte, 0, len(c.Key)+len(c.Chain)), c.Key...), c.Chain...)
}

// String hides the key from logs.
func (c Credentials) String() string { return "credentials of a pod" }

// GoString hides the key from logs.
func (c Credentials) GoString() string { return c.String() }

// pair is a new key with the proof that its owner has it, for one or more requests.
type pair struct {
	key     []byte // PEM
	request []byte // a PKCS #10 request without a content: signing it proves possession
}

// newPair makes a key of a type of the API.
func newPair(keyType string) (*pair, error) {
	var key crypto.Signer
	var err error
	switch keyType {
	case "RSA3072":
		key, err = rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		key, err = rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		key, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	default:
		return nil, fmt.Errorf("keyType %q is not known to this agent: "+
			"use RSA3072, RSA4096, ECDSAP256, ECDSAP384, ECDSAP521 or ED25519", keyType)
	}
	if err != nil {
		return nil, fmt.Errorf("make a key of type %s: %w", keyType, err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("sign a request with a key of type %s: %w", keyType, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write a key of type %s: %w", keyType, err)
	}
	return &pair{pem.EncodeToMemory(&pem.Block{Type: typeKey, Bytes: der}), request}, nil
}

// typeOf returns the API's name of the type of a public key; empty: it has none.
func typeOf(key crypto.PublicKey) string {
	switch key := key.(type) {
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA%d", key.N.BitLen())
	case *ecdsa.PublicKey:
		return fmt.Sprintf("ECDSAP%d", key.Curve.Params().BitSize)
	case ed25519.PublicKey:
		return "ED25519"
	}
	return ""
}

// certificates returns the certificates of a PEM text, without headers and what is between them, in their order.
func certificates(text []byte) (chain []byte) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return chain
		}
		if block.Type == typeCertificate {
			chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: typeCertificate, Bytes: block.Bytes})...)
		}
	}
}

// leafOf returns the first certificate of a chain if it was issued to a key of keyType.
func leafOf(key, chain []byte, keyType string) (*x509.Certificate, error) {
	block, _ := pem.Decode(key)
	if block == nil || block.Type != typeKey {
		return nil, errors.New("no private key")
	}
	private, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("the private key cannot be read") // the cause might tell of the key
	}
	signer, ok := private.(crypto.Signer)
	if !ok || typeOf(signer.Public()) != keyType {
		return nil, fmt.Errorf("the key is not of type %s", keyType)
	}
	if block, _ = pem.Decode(chain); block == nil {
		return nil, errors.New("no certificate")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the certificate: %w", err)
	}
	public, ok := signer.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(leaf.PublicKey) {
		return nil, errors.New("the certificate was not issued to the key")
	}
	return leaf, nil
}

// readWritten reads what an earlier agent wrote: a key and then its chain. It returns an error in any doubt.
func readWritten(bundle []byte, keyType string) (c Credentials, begins, expires time.Time, err error) {
	block, rest := pem.Decode(bundle)
	if block == nil || block.Type != typeKey {
		return c, begins, expires, errors.New("no private key")
	}
	c = Credentials{pem.EncodeToMemory(&pem.Block{Type: typeKey, Bytes: block.Bytes}), certificates(rest)}
	leaf, err := leafOf(c.Key, c.Chain, keyType)
	if err != nil {
		return Credentials{}, begins, expires, err
	}
	return c, leaf.NotBefore, leaf.NotAfter, nil
}
