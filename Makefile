# `make` lists the targets. Everything a new machine lacks is installed by `make deps` (Debian, root).
SHELL := /bin/bash
.DEFAULT_GOAL := help
GO ?= go
STAMP := $(shell git describe --always --dirty 2>/dev/null)
KUBERNETES := v1.36.3
# What upstream's own build stamps into its programs; without it they report v0.0.0-master.
CONTROLPLANE_LDFLAGS := -s -w \
  -X k8s.io/component-base/version.gitVersion=$(KUBERNETES) -X k8s.io/component-base/version.gitMajor=1 \
  -X k8s.io/component-base/version.gitMinor=36 -X k8s.io/client-go/pkg/version.gitVersion=$(KUBERNETES)
LDFLAGS := -s -w -X github.com/plimsoll-dev/plimsoll/internal/version.stamp=$(STAMP)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

.PHONY: build
build: bin/plimsoll bin/plimsoll-controlplane images ## build bin/plimsoll, bin/plimsoll-controlplane and bin/images

.PHONY: bin/plimsoll
bin/plimsoll:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $@ ./cmd/plimsoll

.PHONY: bin/plimsoll-controlplane
bin/plimsoll-controlplane:
	cd controlplane && CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(CONTROLPLANE_LDFLAGS)' -o ../$@ .

# The pause program needs no C library; -z noseparate-code keeps it in one page.
PAUSE_CFLAGS := -Os -Wall -Wextra -Werror -static -nostdlib -ffreestanding -fno-stack-protector \
	-fno-asynchronous-unwind-tables -fno-pie -no-pie -Wl,--build-id=none -Wl,-z,noseparate-code -s

bin/images/pause: images/pause/pause.c
	@mkdir -p $(@D)
	gcc $(PAUSE_CFLAGS) -o $@ $<

# Without -buildvcs=false every commit would make another image of the same program.
.PHONY: images
images: bin/images/pause ## build bin/images/pause.tar and bin/images/workload.tar
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o bin/images/workload ./images/workload
	$(GO) run ./images/build --pause bin/images/pause --workload bin/images/workload --out bin/images

.PHONY: test-unit
test-unit: ## run the tests that need no root and no control plane
	$(GO) test -race ./...
