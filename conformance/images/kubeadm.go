package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// kubeadm returns the images that kubeadm wants for a control plane, under the names by which it refers to them:
// upstream's programs in one image, with nft for kube-proxy. kube-scheduler is our scheduler, by that name.
func (s sources) kubeadm() ([]image, error) {
	program := filepath.Join(s.built, "kubeadm", "kubeadm")
	release, err := exec.Command(program, "version", "--output", "short").Output()
	if err != nil {
		return nil, fmt.Errorf("%s version: %w", program, err)
	}
	list, err := exec.Command(program, "config", "images", "list", // without a version it asks for the newest
		"--kubernetes-version", strings.TrimSpace(string(release))).Output()
	if err != nil {
		return nil, fmt.Errorf("%s config images list: %w", program, err)
	}
	var images []image
	var plane []string
	for name := range strings.FieldsSeq(string(list)) {
		base, _, _ := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
		var only image
		switch base {
		case "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "etcd":
			plane = append(plane, name)
			continue
		case "coredns":
			only, err = s.single(name, filepath.Join(s.built, "images", "coredns"))
		case "pause":
			only, err = s.single(name, s.pause)
		default:
			err = fmt.Errorf("kubeadm wants the image %s: nothing is built for it", name)
		}
		if err != nil {
			return nil, err
		}
		images = append(images, only)
	}
	l := newLayer()
	l.tree(filepath.Join(s.debian, "nftables"))
	l.base()
	const dir = "usr/local/bin/"
	l.dir("usr/local", 0o755)
	l.dir(dir[:len(dir)-1], 0o755)
	l.file(dir+"plimsoll-controlplane", 0o755, filepath.Join(s.built, "plimsoll-controlplane"))
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-proxy", "etcd", "etcdctl"} {
		l.link(dir+name, "plimsoll-controlplane")
	}
	l.file(dir+"kube-scheduler", 0o755, filepath.Join(s.built, "plimsoll"))
	layer, err := l.blob()
	if err != nil {
		return nil, err
	}
	all, err := newImage(plane, oci.ImageConfig{}, layer)
	return append(images, all), err
}

// single returns an image with one program and nothing else.
func (s sources) single(name, program string) (image, error) {
	l := newLayer()
	l.dir("tmp", 0o1777)
	base := filepath.Base(program)
	l.file(base, 0o755, program)
	only, err := l.blob()
	if err != nil {
		return image{}, fmt.Errorf("%s: %w", name, err)
	}
	return newImage([]string{name}, oci.ImageConfig{Entrypoint: []string{"/" + base}}, only)
}
