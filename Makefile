# `make` lists the targets. `make deps` installs what the machine lacks to build and run (Debian, root).
SHELL := /bin/bash
.DEFAULT_GOAL := help
GO ?= go
STAMP := $(shell git describe --always --dirty 2>/dev/null)
KUBERNETES := v1.36.3
# Builds, checks and tests compile with the same flags, so that they share what is compiled. Without directories in it
# (-trimpath), a new clone shares it, too: vet there takes 2 s in place of 4 minutes.
export GOFLAGS := -trimpath $(GOFLAGS)
export CGO_ENABLED := 0
# The tags of the tests that need a control plane, and the one that bin/plimsoll is built with.
TAGS := e2e,grpcnotrace
# What upstream's own build stamps into its programs; without it they report v0.0.0-master.
CONTROLPLANE_LDFLAGS := -s -w \
  -X k8s.io/component-base/version.gitVersion=$(KUBERNETES) -X k8s.io/component-base/version.gitMajor=1 \
  -X k8s.io/component-base/version.gitMinor=36 -X k8s.io/client-go/pkg/version.gitVersion=$(KUBERNETES)
LDFLAGS := -s -w -X github.com/plimsoll-dev/plimsoll/internal/version.stamp=$(STAMP)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

.PHONY: build
build: bin/plimsoll bin/plimsoll-controlplane bin/plimsoll-csi bin/plimsoll-storage bin/cni/plimsoll-hostport images bin/plimsoll-lab bin/lab/guest ## build everything that is in bin/

# grpcnotrace leaves out gRPC's trace pages. Their templates call methods by name, so that the linker would keep every
# exported method in the program: 7 MB of 30, resident in each process.
.PHONY: bin/plimsoll
bin/plimsoll:
	$(GO) build -tags grpcnotrace -ldflags '$(LDFLAGS)' -o $@ ./cmd/plimsoll

.PHONY: bin/plimsoll-controlplane
bin/plimsoll-controlplane:
	cd controlplane && $(GO) build -ldflags '$(CONTROLPLANE_LDFLAGS)' -o ../$@ .

.PHONY: bin/plimsoll-csi
bin/plimsoll-csi:
	$(GO) build -tags grpcnotrace -ldflags '$(LDFLAGS)' -o $@ ./cmd/plimsoll-csi

# The program, and in bin/definitions the definitions of VolumeSnapshots from their published module.
.PHONY: bin/plimsoll-storage
bin/plimsoll-storage:
	cd storage && $(GO) build -tags grpcnotrace -buildvcs=false -ldflags '-s -w' -o ../$@ .
	rm -rf bin/definitions && mkdir -p bin/definitions
	install -m 644 "$$(cd storage && $(GO) list -m -f '{{.Dir}}' github.com/kubernetes-csi/external-snapshotter/client/v8)"/config/crd/snapshot.storage.k8s.io_*.yaml bin/definitions/

.PHONY: bin/cni/plimsoll-hostport
bin/cni/plimsoll-hostport:
	$(GO) build -ldflags '-s -w' -o $@ ./cmd/plimsoll-hostport

.PHONY: bin/plimsoll-lab
bin/plimsoll-lab:
	$(GO) build -ldflags '-s -w' -o $@ ./cmd/plimsoll-lab

# containerd, its shim, ctr and runc, of releases that Debian does not have. One and a half minutes the first time, on
# two cores. runc is partly written in C, so it is built with cgo.
.PHONY: bin/containerd2
bin/containerd2:
	cd test/containerd && $(GO) build -ldflags '-s -w' -o ../../$@/ $(addprefix \
		github.com/containerd/containerd/v2/cmd/,containerd containerd-shim-runc-v2 ctr)
	cd test/containerd && CGO_ENABLED=1 $(GO) build -ldflags '-s -w' -tags seccomp -o ../../$@/ \
		github.com/opencontainers/runc

# kubeadm, and all images that it wants, of our builds. Half a minute the first time, on two cores.
.PHONY: bin/kubeadm
bin/kubeadm: build
	cd test/kubeadm && $(GO) build -ldflags '$(CONTROLPLANE_LDFLAGS)' -o ../../$@/ tool
	conformance/images/debian.sh bin/conformance/debian nftables
	cd conformance && $(GO) run ./images --only kubeadm --out ../$@/images.tar

# Only tests need it, so `build` does not build it. One minute the first time, on two cores.
.PHONY: bin/registry
bin/registry:
	cd test/registry && $(GO) build -buildvcs=false -ldflags '-s -w' -o ../../$@ .

# With -buildvcs the same source would give another initial RAM file system for every commit.
.PHONY: bin/lab/guest
bin/lab/guest:
	$(GO) build -buildvcs=false -ldflags '-s -w' -o $@ ./lab/guest

# The pause program needs no C library; -z noseparate-code keeps it in one page.
PAUSE_CFLAGS := -Os -Wall -Wextra -Werror -static -nostdlib -ffreestanding -fno-stack-protector \
	-fno-asynchronous-unwind-tables -fno-pie -no-pie -Wl,--build-id=none -Wl,-z,noseparate-code -s

bin/images/pause: images/pause/pause.c
	@mkdir -p $(@D)
	gcc $(PAUSE_CFLAGS) -o $@ $<

# With -buildvcs the same source would give another image for every commit.
.PHONY: images
images: bin/images/pause ## build the archives in bin/images: pause, workload, CoreDNS and metrics-server
	$(GO) build -buildvcs=false -ldflags '-s -w' -o bin/images/workload ./images/workload
	cd addons && $(GO) build -tags grpcnotrace -buildvcs=false -ldflags '-s -w' -o ../bin/images/ ./coredns ./metrics-server
	$(GO) run ./images/build --pause bin/images/pause --workload bin/images/workload --coredns bin/images/coredns \
	  --metrics-server bin/images/metrics-server --out bin/images

# For clusters that run scheduler and lifecycle controller as pods (deploy/, docs/in-pods.md). `up` does not need it.
.PHONY: image
image: bin/plimsoll ## build bin/images/plimsoll.tar, the image for the manifests in deploy/
	@mkdir -p bin/images
	$(GO) run ./images/build --plimsoll bin/plimsoll --out bin/images

# The image of a database for tests, of Debian's packages (60 MB are fetched the first time). It is built with the
# suite's images, whose archives may have several layers.
bin/images/postgresql.tar: conformance/images/debian.sh $(wildcard conformance/images/*.go)
	@mkdir -p $(@D)
	conformance/images/debian.sh bin/conformance/debian postgresql
	cd conformance && $(GO) run ./images --only postgresql --out ../$@

.PHONY: deps
deps: ## install missing build dependencies (Debian, root)
	@scripts/deps.sh

.PHONY: deps-test
deps-test:
	@scripts/deps.sh test

.PHONY: up
up: deps build ## start a one-node cluster on this machine and run the demo on it
	bin/plimsoll up --detach
	bin/plimsoll kubectl apply -f examples/demo.yaml
	bin/plimsoll kubectl rollout status deployment/demo --timeout=60s
	bin/plimsoll kubectl get nodes -o wide
	bin/plimsoll kubectl get pods -o wide

.PHONY: down
down: ## stop the cluster; its objects and images stay in /var/lib/plimsoll (bin/plimsoll down --purge removes them)
	bin/plimsoll down

.PHONY: test
test: deps-test build check test-unit test-e2e conformance-core ## install missing dependencies, build, check and run every test

.PHONY: test-unit
test-unit: bin/plimsoll-csi ## run the tests that need no control plane; those that need root are skipped without it
	CGO_ENABLED=1 $(GO) test -race $$($(GO) list ./... | grep -v /test/e2e/)
	$(GO) test ./internal/core/scheduler
	PLIMSOLL_HISTORIES=3000 $(GO) test -run TestHistories ./internal/agent/pods
	cd controlplane && $(GO) vet ./... && $(GO) test ./...
	cd bench && $(GO) vet ./binds ./plane ./node ./up ./evict ./record ./stats ./numa ./scheduler ./lifecycle ./perf ./bare ./events ./explain ./services ./shape && $(GO) test ./node ./up ./record ./stats ./lifecycle ./perf ./scheduler ./shape
	cd oracle && $(GO) vet ./... && $(GO) test ./...
	cd conformance && $(GO) vet ./images ./run && $(GO) test ./images ./run
	cd storage && $(GO) vet ./... && $(GO) test ./...
	cd release && $(GO) vet ./... && $(GO) test -count=1 ./...
	cd test/csisanity && $(GO) vet ./... && $(GO) test -count=1 ./...

.PHONY: console-test
console-test: bin/plimsoll ## look at `plimsoll console` in headless Chromium: 5,000 nodes, every view (ARGS='-pictures ../../docs' writes the pictures of docs)
	@scripts/deps.sh console
	cd test/console && $(GO) vet ./... && $(GO) test -count=1 -v . -args $(ARGS)

.PHONY: oracle-long
oracle-long: ## compare the agent's requests to the runtime with the kubelet's, for 100,000 pods that Pod Security admits
	cd oracle && $(GO) test -count=1 -timeout 60m -run TestConfinement -v -confine.pods=100000 .

.PHONY: docs
docs: ## write docs/compatibility.md from the tables of fields, and flags and outputs in docs/ from the programs
	$(GO) test ./internal/kube/compat -run TestCompatibilityIsCurrent -update
	$(GO) test ./cmd/plimsoll ./cmd/plimsoll-lab -run AreDocumented -update

# Results are not cached (-count=1), because a real control plane, containerd and agent depend on more than the source.
# Every package has its own instances and waits more than it computes, so two run at a time, the longest first. The
# package that measures how fast pods start beside hostile ones runs alone.
E2E := ./test/e2e/lab ./test/e2e/crash ./test/e2e/pods ./test/e2e/...
E2E_ALONE := ./test/e2e/hostile

# At most two tests that fail may pass when each runs once more, alone. gotestsum prints how they failed. What fails
# outside a test, as a package that leaves something behind, stays a failure; its name in the report is empty.
GOTESTSUM := gotest.tools/gotestsum@v1.13.0
TWICE := bin/e2e-twice.txt
define e2e
@rm -f $(TWICE)
$(GO) run $(GOTESTSUM) --format standard-quiet --rerun-fails=1 --rerun-fails-max-failures=2 \
	  --rerun-fails-report=$(TWICE) --packages="$(1)" -- -tags $(TAGS) -count=1 -timeout 30m $(2)
@if grep -s '\.: ' $(TWICE); then echo 'failed outside a test: see above'; exit 1; fi
endef

.PHONY: test-e2e
test-e2e: bin/registry bin/images/postgresql.tar ## run the tests on a real control plane, runtime and kernel
	$(call e2e,$$($(GO) list -tags $(TAGS) $(E2E) | grep -v $(E2E_ALONE:./%=/%)$$ | xargs),-p 2)
	$(call e2e,$(E2E_ALONE))

# The tests that run on containerd 2, too. TestRemoveWhileStarting does not: it delays a call to the shim that
# containerd 2 does not make.
ON_CONTAINERD2 := TestRestartPolicy|TestInitAndSidecar|TestLogs|TestStreams|TestCgroups|TestOOM|TestNetwork|TestVolumes
ON_CONTAINERD2 := $(ON_CONTAINERD2)|TestUserNamespace|TestImageVolume

.PHONY: lab
lab: deps-test build bench-build bin/containerd2 bin/registry bin/kubeadm ## run every test in virtual machines of the lab but that of make swap, and some tests on containerd 2 (two hours)
	bin/plimsoll-lab build
	$(GO) test -tags $(TAGS),lab -count=1 -timeout 150m -p 1 ./lab/... ./test/e2e/lab/...
	PATH=$(CURDIR)/bin/containerd2:$$PATH $(GO) test -count=1 -skip TestRemoveWhileStarting ./internal/containerruntime
	PATH=$(CURDIR)/bin/containerd2:$$PATH $(GO) test -tags $(TAGS) -count=1 -run '$(ON_CONTAINERD2)' ./test/e2e/pods
	$(MAKE) swap-kubeadm

.PHONY: swap
swap: deps-test build bench-build bin/containerd2 ## have upstream's kubelet and our agent take a node from each other, under load, on containerd 1 and 2, and in a virtual machine with CPUs, memory and devices of NUMA nodes (root; half an hour)
	PLIMSOLL_E2E_LONG=1 $(GO) test -tags $(TAGS) -count=1 -timeout 30m -v -run TestSwap ./test/e2e/swap
	PATH=$(CURDIR)/bin/containerd2:$$PATH PLIMSOLL_E2E_LONG=1 $(GO) test -tags $(TAGS) -count=1 -timeout 30m -v -run TestSwap ./test/e2e/swap
	bin/plimsoll-lab build
	PLIMSOLL_E2E_LONG=1 $(GO) test -tags $(TAGS),lab -count=1 -timeout 30m -v -run TestPinnedSwap ./test/e2e/lab

.PHONY: swap-kubeadm
swap-kubeadm: deps-test build bench-build bin/kubeadm ## have upstream's kubelet and our agent take a kubeadm node from each other in a virtual machine, and reboot it with both (half an hour of an idle machine)
	bin/plimsoll-lab build
	PLIMSOLL_E2E_LONG=1 $(GO) test -tags $(TAGS),lab -count=1 -timeout 60m -v -run TestKubeadmSwap ./test/e2e/lab

.PHONY: shadow
shadow: build bin/upstream-scheduler ## watch upstream's kube-scheduler and node-lifecycle controller with plimsoll shadow, 12 hollow nodes, 200 pods, a node that is lost (minutes)
	PLIMSOLL_E2E_LONG=1 $(GO) test -tags $(TAGS) -count=1 -timeout 20m -v -run TestShadowUpstream ./test/e2e/scheduler

# The program of controlplane/ with the modules of another release of Kubernetes, which test/skew has. The version that
# it reports is that of k8s.io/kubernetes there.
SKEW := v1.34 v1.35 v1.37

.PHONY: skew
skew: build $(SKEW:%=bin/skew/%/plimsoll-controlplane) ## run our agent, scheduler and lifecycle controller with the control planes of Kubernetes 1.34, 1.35 and 1.37 (root; half an hour the first time)
	PLIMSOLL_E2E_LONG=1 $(GO) test -tags $(TAGS) -count=1 -timeout 40m -v -run TestSkew ./test/e2e/skew

skew_release = $(shell sed -n 's|^[[:space:]]*k8s.io/kubernetes ||p' test/skew/$(1).mod)

.PHONY: $(SKEW:%=bin/skew/%/plimsoll-controlplane)
$(SKEW:%=bin/skew/%/plimsoll-controlplane): bin/skew/%/plimsoll-controlplane:
	cd controlplane && $(GO) build -modfile=../test/skew/$*.mod \
	  -ldflags '$(subst gitMinor=36,gitMinor=$(*:v1.%=%),$(subst $(KUBERNETES),$(call skew_release,$*),$(CONTROLPLANE_LDFLAGS)))' -o ../$@ .

.PHONY: database
database: build bin/images/postgresql.tar ## run PostgreSQL on a volume while the agent is killed twenty times, the driver too, and the node is drained (root; minutes)
	PLIMSOLL_E2E_LONG=1 $(GO) test -tags $(TAGS) -count=1 -timeout 30m -v ./test/e2e/database

.PHONY: test-long
test-long: ## run the long tests, more than an hour: a runtime frozen for longer than a Lease, renewal of a certificate, a thousand nodes on a bad day, hostile pods one by one, a release, built and installed
	PLIMSOLL_E2E_LONG=1 $(GO) test -tags $(TAGS) -count=1 -timeout 20m -run 'TestAliveInNameOnly' ./test/e2e/crash
	PLIMSOLL_E2E_LONG=1 $(GO) test -tags $(TAGS) -count=1 -timeout 20m -run 'TestPodCertificateRenewal' ./test/e2e/pods
	PLIMSOLL_E2E_LONG=1 $(GO) test -tags $(TAGS) -count=1 -timeout 20m -run 'TestThousand' ./test/e2e/fleet
	PLIMSOLL_E2E_LONG=1 $(GO) test -tags $(TAGS) -count=1 -timeout 2h -run TestOneByOne ./test/e2e/hostile
	cd release && PLIMSOLL_E2E_LONG=1 $(GO) test -count=1 -timeout 60m -run 'TestRelease|TestReproducible' .

# Plays seeds that no run has played before. PLIMSOLL_SEED is added to the seeds of the tests; a failure prints its
# seed.
HISTORIES := TestHistories$$$$|TestTablesAgree|TestStorageHistories|TestMasksAgree|TestSweepsKeepWhatIsUsed|TestAgentsNeverReject|TestTilesAgree

.PHONY: histories
histories: ## run new random histories of the scheduler, 20 times as many as the tests do
	PLIMSOLL_SEED=$${PLIMSOLL_SEED:-$$(date +%s)} PLIMSOLL_SEEDS=$${PLIMSOLL_SEEDS:-20} \
	  $(GO) test -count=1 -timeout 60m -run '$(HISTORIES)' -v ./internal/core/scheduler

# The suite is built from its published module: seven minutes the first time, on two cores. Its programs need no C
# library, because they run in images without one.
CONFORMANCE := bin/conformance

.PHONY: conformance-build
conformance-build: build bin/registry ## build upstream's e2e suite, and the images that it runs, in bin/conformance
	@scripts/deps.sh conformance
	cd conformance && $(GO) build -ldflags '$(CONTROLPLANE_LDFLAGS)' -o ../$(CONFORMANCE)/ tool
	cd conformance && $(GO) test -c -vet=off -ldflags '$(CONTROLPLANE_LDFLAGS)' -o ../$(CONFORMANCE)/e2e.test k8s.io/kubernetes/test/e2e
	conformance/images/debian.sh $(CONFORMANCE)/debian
	cd conformance && $(GO) run ./images --kubernetes "$$($(GO) list -m -f '{{.Dir}}' k8s.io/kubernetes)"

# Prometheus with the discovery of Kubernetes only: the others are 100 MB of clients of clouds.
CHARTS := bin/charts

.PHONY: charts
charts: build bin/images/postgresql.tar ## test the rules of deploy/monitoring; install PostgreSQL, nginx and Prometheus as charts do, use them, and remove them (root; minutes)
	cd test/monitoring && $(GO) build -tags remove_all_sd,enable_kubernetes_sd -buildvcs=false -ldflags '-s -w' -o ../../$(CHARTS)/ tool
	$(CHARTS)/promtool check config --syntax-only deploy/monitoring/prometheus.yml
	$(CHARTS)/promtool check rules deploy/monitoring/rules/*.yaml
	$(CHARTS)/promtool test rules deploy/monitoring/tests/*.yaml
	conformance/images/debian.sh bin/conformance/debian nginx
	cd conformance && $(GO) run ./images --only charts --out ../$(CHARTS)/images.tar
	PLIMSOLL_CHARTS_IMAGES=$(CURDIR)/$(CHARTS)/images.tar $(GO) test -tags $(TAGS) -count=1 -timeout 60m -v ./test/e2e/charts

# Without FOCUS and ARGS: every test marked [Conformance] or [NodeConformance], about an hour.
.PHONY: conformance
conformance: conformance-build ## run upstream's e2e suite against our components (root; FOCUS='Probing container' or ARGS='--tests once-failed.txt --repeat 10')
	cd conformance && $(GO) run ./run $(if $(FOCUS)$(ARGS),,--out results/whole.md) $(if $(FOCUS),--focus '$(FOCUS)') $(ARGS)

# Tests of abilities that conformance/storage.yaml does not claim skip themselves. Left out here are whole groups of
# them. Tests that restart the node's kubelet run apart, and some of them have the mark of SELinux without needing it.
STORAGE_LACKS := \[Feature:(OffByDefault|VolumeAttributesClass|snapshotmetadata|volumegroupsnapshot|Windows)\]
STORAGE_LACKS := $(STORAGE_LACKS)|FeatureGate|Inline-volume|CSI Ephemeral|Pre-provisioned PV|\((ntfs|xfs|ext3)\)
STORAGE_SKIP := \[Disruptive\]|\[Feature:SELinux\]|$(STORAGE_LACKS)

.PHONY: conformance-storage
conformance-storage: conformance-build ## run upstream's suites of storage drivers on our CSI driver (root; ARGS='--agent ../bin/upstream-kubelet --out results/storage-kubelet.md' with upstream's kubelet)
	cd conformance && $(GO) run ./run --driver storage.yaml --focus '\[Driver: csi.plimsoll.dev\]' --skip '$(STORAGE_SKIP)' \
	  --volumes-max 100 --procs 4 --left-out storage-left-out.txt --out results/storage.md $(ARGS)

.PHONY: conformance-disruptive
conformance-disruptive: conformance-build ## run upstream's tests of storage that stop the node's kubelet meanwhile (root; ARGS='--agent ../bin/upstream-kubelet --out results/disruptive-kubelet.md' with upstream's kubelet)
	cd conformance && $(GO) run ./run --driver storage.yaml --ssh --focus '\[Driver: csi.plimsoll.dev\].*\[Disruptive\]' \
	  --skip '$(STORAGE_LACKS)' --left-out storage-left-out.txt --out results/disruptive.md $(ARGS)

.PHONY: conformance-core
conformance-core: conformance-build ## run a few quick tests of each area of upstream's e2e suite (root; conformance/core.txt)
	@if [ "$$(id -u)" != 0 ]; then echo 'conformance-core: skipped: it needs root'; exit 0; fi; \
	  set -x; cd conformance && $(GO) run ./run --tests core.txt --procs 6 --forgive 2 --out ../$(CONFORMANCE)/core.md

.PHONY: campaign-pods
campaign-pods: ## run the agent's pod logic through random failures for a long time (ARGS='-histories 1000000 -first 20000'; a failure prints its seed)
	$(GO) test -count=1 -timeout 24h -run TestHistories ./internal/agent/pods -args -histories 1000000 -first 10001 $(ARGS)

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: check
check: ## check format, go.mod, vet, staticcheck (its rules: staticcheck.conf), imports, and that the core reads no clock
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$unformatted" ]; then echo "gofmt -w $$unformatted"; exit 1; fi
	$(GO) mod tidy -diff
	$(GO) vet -tags $(TAGS),lab ./...
	$(GO) run $(STATICCHECK) -tags $(TAGS),lab ./...
	$(GO) test -run 'Imports|Rules|Reach|CoreReadsNoClock' .

# The programs that are built of Go modules. The images contain those in bin/images and nothing else.
PROGRAMS := $(addprefix bin/,plimsoll plimsoll-controlplane plimsoll-csi plimsoll-storage cni/plimsoll-hostport \
	images/workload images/coredns images/metrics-server)

# The modules are those that the linker noted in each program.
.PHONY: sbom
sbom: build ## write bin/sbom.cdx.json: the modules in every program and image that is built (CycloneDX)
	$(GO) run ./scripts/sbom $(PROGRAMS) bin/images/pause > bin/sbom.cdx.json

# The tag at this commit. `make release RELEASE=v0.0.0-try` builds one without a tag, to look at it.
RELEASE ?= $(shell git describe --tags --exact-match --match 'v[0-9]*' 2>/dev/null)

.PHONY: release
release: ## build a release in dist/TAG: Debian packages for amd64 and arm64, bill of materials, checksums (RELEASE=v0.0.0-try without a tag)
	@if [ -z "$(RELEASE)" ]; then echo 'release: no tag like v0.1.0 is at this commit; RELEASE=v0.0.0-try builds one to look at'; exit 1; fi
	@if [ -n "$$(git status --porcelain)" ]; then echo 'release: commit first: a release is what its commit says'; exit 1; fi
	cd release && $(GO) run . --version '$(RELEASE)' --time "$$(git log -1 --format=%ct)" --out '../dist/$(RELEASE)'

GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.1.4

# Checks the built programs. They have no symbols (-s -w), so it cannot say which vulnerable functions they call.
.PHONY: vulncheck
vulncheck: ## check everything that is built for known vulnerabilities (VULNDB=file:///copy/of/the/database, or https://vuln.go.dev)
	@if [ -z "$(VULNDB)" ]; then echo 'Which database? VULNDB=https://vuln.go.dev, or, without that network, VULNDB=file:///DIR with an unpacked copy of it (https://vuln.go.dev/vulndb.zip)'; exit 1; fi
	@for f in $(PROGRAMS); do echo "$$f"; $(GO) run $(GOVULNCHECK) -db '$(VULNDB)' -mode binary "$$f" || exit 1; done

# Built with cgo, like the kubelet that upstream publishes.
.PHONY: bench-build
bench-build: ## build bin/upstream-kubelet, for comparison (several minutes the first time)
	cd bench && CGO_ENABLED=1 $(GO) build -ldflags '$(CONTROLPLANE_LDFLAGS)' -o ../bin/upstream-kubelet ./upstream-kubelet

.PHONY: bin/upstream-scheduler
bin/upstream-scheduler:
	cd bench && $(GO) build -ldflags '$(CONTROLPLANE_LDFLAGS)' -o ../$@ ./upstream-scheduler

.PHONY: bench-binds
bench-binds: build bin/upstream-scheduler ## measure our scheduler and upstream's end to end, 5,000 pods on 5,000 nodes (ARGS='--rounds 1 --nodes 1000' for a quick look)
	cd bench && $(GO) run ./binds $(ARGS)

.PHONY: bench-explain
bench-explain: build ## measure plimsoll explain among 5,000 nodes and 150,000 pods (ARGS='--nodes 500 --pods 15000' for a quick look)
	cd bench && $(GO) run ./explain $(ARGS)

.PHONY: bench-evict
bench-evict: build bench-build ## measure our evictions and the kubelet's while memory runs out (root, cgroup v1; ARGS='--runs 2 --kubelet-runs 1' for a quick look)
	cd bench && $(GO) run ./evict $(ARGS)

.PHONY: bench-lifecycle
bench-lifecycle: build ## measure our lifecycle controller and upstream's on 5,000 hollow nodes (ARGS='--rounds 1 --nodes 1000' for a quick look)
	cd bench && $(GO) run ./lifecycle $(ARGS)

.PHONY: bench-node
bench-node: build bench-build ## measure our agent, upstream's kubelet and a bare CRI client (root; ARGS='--rounds 1 --steady 60s' for a quick look)
	cd bench && $(GO) run ./node $(ARGS)

.PHONY: bench-churn
bench-churn: build bench-build ## have 10,000 pods come and go on our agent, then on upstream's kubelet, and measure what they keep (root; two hours; ARGS='--churn 300 --only plimsoll --out ""' for a quick look)
	cd bench && $(GO) run ./node --churn 10000 --rounds 1 --settle 30s --out results/churn.md $(ARGS)

.PHONY: bench-volumes
bench-volumes: build bench-build ## measure pods with claims on our agent and upstream's kubelet (root; ARGS='--rounds 1' for a quick look)
	cd bench && $(GO) run ./node --claims 1 --batches 1,30,110 --out results/volumes.md $(ARGS)
	cd bench && $(GO) run ./node --claims 10 --batches 100 --singles 0 --rounds 1 --out results/volumes-rest.md $(ARGS)

.PHONY: bench-up
bench-up: build bench-build bin/upstream-scheduler ## measure up with one node, with three, and with upstream's kubelet, scheduler and node-lifecycle controller (root; ARGS='--rounds 1 --rest 20s' for a quick look)
	cd bench && $(GO) run ./up $(ARGS)

.PHONY: bench-services
bench-services: build ## measure how soon Services work where there are a thousand (root; ARGS='--rounds 1 --samples 10 --rest 10s --out ""' for a quick look)
	cd bench && $(GO) run ./services $(ARGS)

.PHONY: bench-numa
bench-numa: ## measure our decisions on CPUs and NUMA nodes, and the kubelet's (ARGS='--rounds 1 --long=false' for a quick look)
	cd bench && $(GO) run ./numa --out results/numa.md $(ARGS)

.PHONY: bench-perf
bench-perf: build bin/upstream-scheduler ## run upstream's scheduler_perf workloads against both schedulers, each as a process, about 20 minutes (ARGS='--list' or '--only Preemption --scale 0.1')
	cd bench && $(GO) run ./perf $(ARGS)

.PHONY: bench-scheduler
bench-scheduler: ## measure our scheduler's decisions and kube-scheduler's (ARGS='-rounds 1 -only basic' for a quick look)
	cd bench && $(GO) run ./scheduler -out results/scheduler.md $(ARGS)
