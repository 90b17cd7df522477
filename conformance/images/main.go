// Command images builds the archive of the images that upstream's e2e suite runs, under the names by which the suite
// refers to them.
//
//	images --programs ../bin/conformance --debian ../bin/conformance/debian --pause ../bin/images/pause --kubernetes DIR --out FILE
//	images --only postgresql --debian ../bin/conformance/debian --out ../bin/images/postgresql.tar
//	images --only charts --debian ../bin/conformance/debian --monitoring ../bin/charts --out ../bin/charts/images.tar
//	images --only kubeadm --debian ../bin/conformance/debian --built ../bin --out ../bin/kubeadm/images.tar
//
// The other forms build images for tests of ours instead (test/e2e): a database, what test/e2e/charts installs besides
// it, and those of a cluster of kubeadm.
//
// Nothing is pulled. The tests' own programs (agnhost, nonewprivs, ...) are built from the module of the suite.
// busybox, and what agnhost's image contains besides agnhost, are Debian's (debian.sh); upstream uses Alpine's. Images
// whose content no test reads are substitutes: kitten and nautilus are agnhost with their page. Every image of the
// tests marked [Conformance] and [NodeConformance] is here. Others are missing (apparmor-loader, nfs, iscsi, perl,
// distroless-iptables, CSI sidecars): their tests fail with ErrImagePull.
//
// The command runs at build time only. The same inputs give the same bytes: no time, user or host name is included.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	oci "github.com/opencontainers/image-spec/specs-go/v1"
	manifest "k8s.io/kubernetes/test/utils/image"
)

// sources says where the parts of the images are.
type sources struct {
	programs   string // directory of agnhost, etcd, sample-apiserver and the others
	debian     string // directory that debian.sh filled
	pause      string // our pause program
	kubernetes string // directory of the module k8s.io/kubernetes
	monitoring string // directory of prometheus and kube-state-metrics
	built      string // directory of `make build`, with kubeadm in kubeadm/
}

func main() {
	var s sources
	flag.StringVar(&s.programs, "programs", "../bin/conformance", "directory of the tests' programs")
	flag.StringVar(&s.debian, "debian", "../bin/conformance/debian", "directory of what debian.sh has fetched")
	flag.StringVar(&s.pause, "pause", "../bin/images/pause", "the pause program")
	flag.StringVar(&s.kubernetes, "kubernetes", "", "directory of the module k8s.io/kubernetes")
	flag.StringVar(&s.monitoring, "monitoring", "../bin/charts", "directory of prometheus and kube-state-metrics")
	flag.StringVar(&s.built, "built", "../bin", "directory of what make builds")
	out := flag.String("out", "../bin/conformance/images.tar", "the archive")
	only := flag.String("only", "", "build images for our own tests instead of the suite's: postgresql, charts or kubeadm")
	flag.Parse()
	if err := run(s, *only, *out); err != nil {
		fmt.Fprintln(os.Stderr, "build conformance images:", err)
		os.Exit(1)
	}
}

func run(s sources, only, out string) error {
	build := s.images
	switch only {
	case "":
	case "postgresql":
		build = s.postgresql
	case "charts":
		build = s.charts
	case "kubeadm":
		build = s.kubeadm
	default:
		return fmt.Errorf("--only %q: want postgresql, charts or kubeadm", only)
	}
	images, err := build()
	if err != nil {
		return err
	}
	return writeArchive(out, images)
}

// images returns all images. They share layers.
func (s sources) images() ([]image, error) {
	pause, err := s.pauseImage("public")
	if err != nil {
		return nil, err
	}
	private, err := s.pauseImage("private")
	if err != nil {
		return nil, err
	}
	busybox, err := s.busybox()
	if err != nil {
		return nil, err
	}
	made := map[string]blob{}
	for name, fill := range map[string]func(*layer){
		"tools":      s.tools,
		"agnhost":    func(l *layer) { s.agnhost(l, private) },
		"kitten":     func(l *layer) { s.page(l, "kitten") },
		"nautilus":   func(l *layer) { s.page(l, "nautilus") },
		"nginx":      s.nginx,
		"etcd":       func(l *layer) { l.file("usr/local/bin/etcd", 0o755, s.program("server")) }, // etcd's server/main.go
		"apiserver":  func(l *layer) { l.file("sample-apiserver", 0o755, s.program("sample-apiserver")) },
		"consumer":   s.consumer,
		"dd":         s.dd,
		"nonewprivs": func(l *layer) { l.file("usr/local/bin/nnp", 0o6755, filepath.Join(s.programs, "nonewprivs")) },
		"regression": func(l *layer) {
			l.file("regression-issue-74839", 0o755, filepath.Join(s.programs, "regression-issue-74839"))
		},
	} {
		l := newLayer()
		fill(l)
		if made[name], err = l.blob(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	images := []image{pause}
	var all []error
	add := func(config oci.ImageConfig, above []string, ids ...manifest.ImageID) {
		stack := []blob{busybox}
		for _, name := range above {
			stack = append(stack, made[name])
		}
		i, err := newImage(names(ids...), config, stack...)
		images, all = append(images, i), append(all, err)
	}
	shell := oci.ImageConfig{Cmd: []string{"sh"}}
	agnhost := oci.ImageConfig{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}
	server := oci.ImageConfig{Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}}
	add(shell, nil, manifest.BusyBox)
	add(oci.ImageConfig{Cmd: []string{"sh"}, User: "1234"}, nil, manifest.NonRoot)
	add(shell, []string{"tools"}, manifest.IpcUtils)
	add(shell, []string{"tools", "dd"}, manifest.GlibcDnsTesting)
	add(agnhost, []string{"tools", "agnhost"}, manifest.Agnhost, manifest.AgnhostPrev)
	add(server, []string{"tools", "agnhost", "kitten"}, manifest.Kitten)
	add(server, []string{"tools", "agnhost", "nautilus"}, manifest.Nautilus)
	nginx := oci.ImageConfig{Cmd: []string{"nginx", "-g", "daemon off;"}}
	add(nginx, []string{"nginx"}, manifest.Nginx, manifest.NginxNew)
	add(oci.ImageConfig{Cmd: []string{"etcd"}}, []string{"etcd"}, manifest.Etcd)
	add(oci.ImageConfig{Entrypoint: []string{"/sample-apiserver"}}, []string{"apiserver"}, manifest.APIServer)
	add(oci.ImageConfig{Entrypoint: []string{"/consumer"}}, []string{"consumer"}, manifest.ResourceConsumer)
	add(oci.ImageConfig{Cmd: []string{"nnp"}}, []string{"nonewprivs"}, manifest.Nonewprivs)
	regression := oci.ImageConfig{Entrypoint: []string{"/regression-issue-74839"}}
	add(regression, []string{"regression"}, manifest.RegressionIssue74839)
	return images, errors.Join(all...)
}

func (s sources) program(name string) string { return filepath.Join(s.programs, name) }

// names returns the names by which the suite refers to images.
func names(ids ...manifest.ImageID) (names []string) {
	for _, id := range ids {
		names = append(names, manifest.GetE2EImage(id))
	}
	return names
}

// pauseImage returns the pause image. That of the tests' private registry must differ from the public one: an image
// that a pod pulled with a secret is refused to pods without, under every name (the kubelet's
// imagePullCredentialsVerificationPolicy).
func (s sources) pauseImage(kind string) (image, error) {
	l := newLayer()
	l.file("pause", 0o755, s.pause)
	only, err := l.blob()
	if err != nil {
		return image{}, err
	}
	return newImage(names(manifest.Pause), oci.ImageConfig{
		Entrypoint: []string{"/pause"},
		User:       "65535:65535",
		Labels:     map[string]string{"dev.plimsoll.conformance": kind},
	}, only)
}

// Users and groups of every image with a shell: those that tests and Debian's programs use.
const (
	users = "root:x:0:0:root:/root:/bin/sh\n" +
		"daemon:x:1:1:daemon:/usr/sbin:/bin/false\n" +
		"www-data:x:33:33:www-data:/var/www:/bin/false\n" +
		"nobody:x:65534:65534:nobody:/home:/bin/false\n"
	groups = "root:x:0:\ndaemon:x:1:\ntty:x:5:\nwww-data:x:33:\nnogroup:x:65534:\n"
)

// busybox returns the lowest layer: the program with all its names, and the usual directories and files of a root file
// system.
func (s sources) busybox() (blob, error) {
	program := filepath.Join(s.debian, "busybox")
	list, err := exec.Command(program, "--list-full").Output()
	if err != nil {
		return blob{}, fmt.Errorf("%s --list-full: %w", program, err)
	}
	l := newLayer()
	for _, name := range []string{
		"bin", "dev", "etc", "home", "lib", "lib64", "proc", "root", "run", "sbin", "sys",
		"usr", "usr/bin", "usr/local", "usr/local/bin", "usr/sbin", "var", "var/log", "var/www",
	} {
		l.dir(name, 0o755)
	}
	l.dir("tmp", 0o1777)
	l.dir("var/tmp", 0o1777)
	l.file("bin/busybox", 0o755, program)
	// The usual image of busybox has every name in /bin, and tests call /bin/sysctl.
	names := map[string]bool{}
	for name := range strings.FieldsSeq(string(list)) {
		names[name] = true
		names["bin/"+filepath.Base(name)] = true
	}
	delete(names, "bin/busybox")
	delete(names, "linuxrc")
	delete(names, "bin/linuxrc")
	for _, name := range slices.Sorted(maps.Keys(names)) {
		l.link(name, "/bin/busybox")
	}
	l.text("etc/passwd", users)
	l.text("etc/group", groups)
	l.text("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
	return l.blob()
}

// tools adds Debian's programs. The name nc is usually made by Debian's maintainer scripts, which do not run here.
// Without it tests would find busybox's nc, which lacks options that they use.
func (s sources) tools(l *layer) {
	l.tree(filepath.Join(s.debian, "tools"))
	l.link("bin/nc", "/bin/nc.openbsd")
	l.link("usr/bin/nc", "/bin/nc.openbsd")
}

// agnhost adds what agnhost's Dockerfile adds, and the registry that agnhost serves: pause under the tag testing, in
// the directories of agnhost's fakeregistryserver.
func (s sources) agnhost(l *layer, pause image) {
	l.file("agnhost", 0o755, s.program("agnhost"))
	l.link("agnhost-2", "agnhost")
	l.link("usr/local/bin/iperf", "/usr/bin/iperf")
	l.dir("uploads", 0o755)
	for _, name := range []string{"localhost.crt", "localhost.key"} {
		l.file(name, 0o644, filepath.Join(s.kubernetes, "test/images/agnhost/porter", name))
	}
	l.text("etc/passwd", users+"user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n")
	l.text("etc/group", groups+"user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n")
	l.text("var/registry/pause/manifests/testing", pause.manifest.Digest.String()+"\n")
	serve := func(kind string, b blob) {
		sum := b.Digest.Encoded()
		l.text(filepath.Join("var/registry/pause", kind, b.Digest.Algorithm().String(), sum[:2], sum, "data"),
			string(b.content))
	}
	serve("manifests", pause.manifest)
	serve("blobs", pause.config)
	for _, b := range pause.layers {
		serve("blobs", b)
	}
}

// dd adds the dd of Debian's coreutils, which writes around caches (oflag=nocache) as tests of volumes want. busybox's
// does not. It needs no library but libc, which tools has.
func (s sources) dd(l *layer) {
	l.file("bin/dd", 0o755, filepath.Join(s.debian, "coreutils", "bin", "dd"))
}

// page adds what the Dockerfiles of kitten and nautilus add to agnhost. A test of image volumes looks for the name of
// upstream's distribution in kitten.
func (s sources) page(l *layer, name string) {
	l.text("etc/os-release", "NAME=\"Plimsoll's substitute for an image of Alpine Linux\"\nID=plimsoll-conformance\n")
	for _, file := range []string{name + ".jpg", "data.json"} {
		l.file(file, 0o644, filepath.Join(s.kubernetes, "test/images", name, "html", file))
	}
}

// consumer adds upstream's resource-consumer, and Debian's stress, which it runs.
func (s sources) consumer(l *layer) {
	l.tree(filepath.Join(s.debian, "stress"))
	l.file("consumer", 0o755, s.program("resource-consumer"))
	l.dir("consume-cpu", 0o755)
	l.file("consume-cpu/consume-cpu", 0o755, s.program("consume-cpu"))
}

// nginx is Debian's nginx with the one site of upstream's image. Its log is written where kubectl logs reads it.
func (s sources) nginx(l *layer) {
	l.tree(filepath.Join(s.debian, "nginx"))
	l.text("etc/passwd", users)
	l.text("etc/group", groups)
	l.text("etc/nginx/conf.d/default.conf",
		"server { listen 80; root /usr/share/nginx/html; index index.html; }\n")
	l.link("var/log/nginx/access.log", "/dev/stdout")
	l.link("var/log/nginx/error.log", "/dev/stderr")
}
