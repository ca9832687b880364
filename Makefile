# What people type. `make demo` shows mulligan at work, `make test` tests all of it.

SHELL   := /bin/bash
PREFIX  ?= /usr/local
DESTDIR ?=
BINDIR  := $(DESTDIR)$(PREFIX)/bin
SHARE   := $(DESTDIR)$(PREFIX)/share
FUZZTIME ?= 10s

VERSION ?= $(shell git describe --tags --dirty 2>/dev/null || echo 0.1.0-dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

# libvirt is opened when it is used, so a host without it needs nothing of it.
TAGS    := -tags libvirt_dlopen
# The client speaks HTTP/1.1 over a unix socket and nothing else: HTTP/2 would make it larger for nothing.
CLIENT_TAGS := -tags nethttpomithttp2
# The version is handed over, so that a build doesn't depend on what git says of who owns the folder.
BUILD   := go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)"

GOTESTSUM   := go run gotest.tools/gotestsum@v1.13.0
STATICCHECK := go run honnef.co/go/tools/cmd/staticcheck@v0.8.2
PACKAGES    := git gcc libc6-dev systemd dbus dbus-user-session util-linux groff-base sqlite3 postgresql mariadb-server python3-minimal redis-server xfsprogs e2fsprogs passwd mount perl chromium tmux btrfs-progs stress-ng bindfs fuse3 fuse-overlayfs curl procps xz-utils \
               rpm pacman-package-manager docker.io docker-compose podman podman-compose runc netavark aardvark-dns iptables iproute2 passt
# A private libvirtd and its tiny guests.
LIBVIRT     := libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients qemu-system-x86 qemu-utils qemu-guest-agent \
               busybox-static cpio linux-image-cloud-amd64
PACKAGES    += $(LIBVIRT)
# A private Ceph, for guests whose disks are RBD images.
PACKAGES    += ceph-mon ceph-osd ceph-common radosgw qemu-block-extra
# What builds and tries releases for other processors and hosts: a part of the long run.
test-long: PACKAGES += gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static makepkg libarchive-tools nix-bin

# As root nothing is missing that a test could need, so no test may skip.
ROOT := $(filter 0,$(shell id -u))

.PHONY: build static deps test test-long soak mutants lint bench bench-full bench-growth bench-go fuzz demo demo-vm reference man install share uninstall stage packages deb rpm archlinux release sbom clean

build:
	CGO_ENABLED=0 $(BUILD) $(CLIENT_TAGS) -o bin/mulligan ./cmd/mulligan
	$(BUILD) $(TAGS) -o bin/mulligand ./cmd/mulligand

# A daemon that needs no library of the host's, and has no virtual machines.
static:
	go build -trimpath -buildvcs=false -tags netgo,osusergo -ldflags "-s -w -linkmode external -extldflags -static -X main.version=$(VERSION) -X main.commit=$(COMMIT)" \
	  -o bin/static/mulligand ./cmd/mulligand

# npm brings the MCP Inspector; where it is there already, from wherever, Debian's is not wanted.
PACKAGES    += $(if $(shell command -v npm),,npm)

# The Debian packages that tests use; only root can install what is missing. The kernel is for guests, which have an initramfs
# of their own: none is made of it here.
deps:
	@there=$$(dpkg-query -W -f '/$${Package}/$${db:Status-Status}/ ' $(PACKAGES) 2>/dev/null || true); \
	missing=; for p in $(PACKAGES); do case $$there in */$$p/installed/*) ;; *) missing="$$missing $$p" ;; esac; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ -z "$(ROOT)" ] || ! command -v apt-get >/dev/null; then \
	  echo "deps: not installed:$$missing (tests that need them are skipped)"; exit 0; \
	fi; \
	echo "deps: installing$$missing"; \
	log=$$(mktemp); \
	{ apt-get -q update && INITRD=No DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install $$missing; } >$$log 2>&1 \
	  || { cat $$log; rm -f $$log; exit 1; }; \
	rm -f $$log

# Some tests build the programs they run: Go's cache of results knows nothing of those. Most wait for
# servers, disks and guests: two packages more at a time than there are processors, besides those of the programs, and in each as many tests
# as there are processors.
# The race detector watches Go's memory. SQLite and the C library that it uses, translated from C, keep theirs outside of it: watching
# that finds nothing and takes up to three times as long. BLAKE3, compression, keys and deltas compute on what they are given alone; watching them
# costs as much. Not more packages than those: one with generic code that others use too, a sync.Map for instance, can be where
# the linker takes that code from, without the detector, for the whole program; and then races are reported that are none.
# make lint vets.
UNWATCHED := modernc.org/sqlite/lib modernc.org/libc/... modernc.org/memory github.com/zeebo/blake3/... github.com/klauspost/compress/... crypto/ecdh crypto/internal/fips140/edwards25519/field mulligan/snap/cas/delta
RACE := -race $(UNWATCHED:%=-gcflags=%=-race=false)
# Without paths in what is compiled, a new clone finds in Go's cache what another one left there; without what debuggers read, linking takes less.
TEST_BUILD := -trimpath -ldflags "-s -w" -count=1 -vet=off $(TAGS)
TEST_FLAGS := $(TEST_BUILD) -p $(shell expr $$(nproc) + 2) -parallel $(shell nproc) -timeout 60m -skip '^Test(Long|Soak)'

# What takes longest begins first: else the last package runs alone.
LONGEST := ./daemon ./snap/postgres/physical ./snap/disk/rbd ./snap/postgres/logical ./remote ./snap/files ./snap/mysql ./engine ./snap/disk ./snap/redis ./mcpserver ./snap/sqlite ./systemd ./snap/cas ./snap/files/watch ./snap/files/reflink
# The tests of these packages drive the programs as users build them: without the race detector, which would watch the tests alone.
PROGRAMS := ./cmd/mulligand ./packaging ./docs

# The tests of all three packages build the programs, and at the same moment: without this, each would compile what the cache lacks.
COMPILE_PROGRAMS := go build -trimpath $(TAGS) ./cmd/... ./docs/... ./packaging/... && CGO_ENABLED=0 go build -trimpath -o /dev/null $(CLIENT_TAGS) ./cmd/mulligan

# Programs with the race detector wait a second at their end, unless told not to; and tests start many. For each piece of memory of 64 KB and more that
# is taken, the detector maps what it notes of it anew, unless told to overwrite that: with it, tests of files have half the page faults.
# Memory is not short: collecting garbage less often leaves the processors to the tests.
TEST_ENV := GORACE="atexit_sleep_ms=0 clear_shadow_mmap_threshold=1000000000" GOGC=400

# What tests draw at random comes from one seed for each package, another one in each run; MULLIGAN_TEST_SEED=N make test draws as
# what failed with seed N did. MULLIGAN_TEST_RUN counts the runs on this machine, so that tests which take a sample take the next one.
CACHE := $(or $(MULLIGAN_TEST_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/mulligan-test)
SEED  := mkdir -p $(CACHE); run=$$(cat $(CACHE)/run 2>/dev/null || od -An -N2 -tu2 /dev/urandom); run=$$(((run + 1) % 65536)); \
         echo $$run >$(CACHE)/run; export MULLIGAN_TEST_RUN=$$run

# The temporary folder of a run. ext4 puts the folders in one with the attribute T all over the disk. Else they would lie together, where
# much was just removed, and ext4 looks at each inode that was just removed before it gives a new one: that takes twenty times as long.
# It is removed at the end, unless something is still mounted in it. Other users have to get at what root makes in it, whatever root's umask.
SCRATCH := umask 022; export TMPDIR=$$(mktemp -d "$${TMPDIR:-/tmp}/mXXX") && chmod 1777 "$$TMPDIR" && { chattr +T "$$TMPDIR" 2>/dev/null || :; } && \
           trap 'mount | grep -qF " $$TMPDIR/" || rm -rf --one-file-system "$$TMPDIR"' EXIT

# What a change must pass. Nothing that failed is run again. Tests whose names begin with TestLong or TestSoak are in the long run
# and the soak alone.
# At the end: where the time went.
test: deps
	@$(SEED); $(SCRATCH); export $(TEST_ENV) $(if $(ROOT),MULLIGAN_TEST_NOSKIP=1); mkdir -p bin; rm -f bin/test*.json; \
	sum="$(GOTESTSUM) --format standard-quiet"; rest=$$(go list $(TAGS) ./... | grep -vxF "$$(go list $(TAGS) $(PROGRAMS))"); \
	{ $(COMPILE_PROGRAMS) && $$sum --jsonfile bin/test-programs.json --packages "$(PROGRAMS)" -- $(TEST_FLAGS); } & programs=$$!; \
	$$sum --jsonfile bin/test-rest.json --packages "$(LONGEST) $$rest" -- $(TEST_FLAGS) $(RACE); code=$$?; wait $$programs || code=1; \
	cat bin/test-*.json >bin/test.json; echo "the slowest ten:"; $(GOTESTSUM) tool slowest --jsonfile bin/test.json --num 10 || exit 1; exit $$code

# All kills, faults and flips of which make test takes samples. A run that was stopped goes on with
# the packages that are left; PART=3/8 does the third of eight parts of each. Of the steps of an operation that are of one kind, one is taken, and
# each step fails with two of the four errors; EVERY=1 takes all steps and all errors. The daemon's package takes the longest: more of its tests run at once.
# Those of the programs and of the files take up to an hour each: they begin next.
# Many of these tests wait for what takes its time, so more of them, and of the packages, run at once than there are processors.
# bin/long has what each package said, and its numbers of kills, faults and flips. TMPDIR needs some GB.
LONG = bin/long$(if $(PART),/$(subst /,of,$(PART)))
test-long: deps
	@$(SEED); $(SCRATCH); export $(TEST_ENV) $(if $(ROOT),MULLIGAN_TEST_NOSKIP=1) MULLIGAN_TEST_LONG=1 MULLIGAN_TEST_EVERY=$(EVERY) MULLIGAN_TEST_PART=$(PART); mkdir -p $(LONG); rm -f $(LONG)/*.txt; \
	{ go list $(TAGS) $(firstword $(LONGEST)) $(PROGRAMS) ./snap/files $(LONGEST); go list $(TAGS) ./...; } | awk '!seen[$$0]++' | xargs -n 1 -P $(shell expr $$(nproc) + 1) \
	  sh -c 'log=$$1/$$(echo $$2 | tr / -); [ ! -e $$log.ok ] || exit 0; rm -f $$log.tally; \
	    if MULLIGAN_TEST_TALLY=$$PWD/$$log.tally go test $(TEST_BUILD) -timeout 3h -parallel $$(expr $$(nproc) \* $$(case $$2 in */daemon) echo 3 ;; *) echo 2 ;; esac)) -v -skip "^TestSoak" $$2 >$$log.txt 2>&1; \
	    then tail -n 1 $$log.txt; mv $$log.txt $$log.ok; else echo "failed: $$2"; grep -E -A40 -e "--- FAIL|^panic|^FAIL" $$log.txt | head -200; fi' package $(LONG); \
	cat $(LONG)/*.tally | awk '{n[$$1] += $$2} END {for (what in n) print n[what], what}'; \
	failed=$$(ls $(LONG)/*.txt 2>/dev/null); [ -z "$$failed" ] || { echo "failed: $$failed"; exit 1; }; \
	rm -rf $(LONG).done; mv $(LONG) $(LONG).done

# A day of agents at work on an app whose daemon and programs are killed and whose disk fills up, for as long as SOAK says.
SOAK ?= 10m
soak: deps
	@$(SEED); $(SCRATCH); $(TEST_ENV) $(if $(ROOT),MULLIGAN_TEST_NOSKIP=1) MULLIGAN_TEST_SOAK=$(SOAK) \
	  go test -count=1 -timeout 0 $(TAGS) -v -run '^TestSoak' ./cmd/mulligand

lint:
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt:" $$unformatted; exit 1; }
	go vet $(TAGS) ./...
	go mod tidy -diff
	$(STATICCHECK) $(TAGS) ./...

# What mulligan takes beside what people use today, in one run, and at its end one table with goals and verdicts (testkit/benchtable). These sizes
# take twenty minutes on 2 cores; bench-full has those that all goals are for, and bench-growth those from 1,000 to 300,000 files.
# BENCH=forks does that part alone.
BENCH       := files postgres disks downtime forks hooks remotes containers
BENCH_RUN    = MULLIGAN_TEST_NOSKIP=1 go test $(TAGS) -timeout 2h -run '^$$' -benchtime
bench bench-full bench-growth: export BENCH_TABLE := $(CURDIR)/bin/bench.table
bench: MB := 300
bench: SENT := 20000
bench-full: MB := 1000
bench-full: SENT := 100000
bench bench-full: deps
	@mkdir -p bin && rm -f $(BENCH_TABLE)
	@failed=; $(foreach part,$(BENCH),date '+== $(part) %T'; ( $(BENCH_$(part)) ) || failed="$$failed $(part)";) date '+== table %T'; \
	go run ./testkit/benchtable/print; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }
bench-growth: deps
	@mkdir -p bin && rm -f $(BENCH_TABLE)
	@BENCH_FILES=1000,10000,100000,300000 BENCH_ROWS=abcdefgiklmnpr go run $(TAGS) ./snap/files/filesbench
	@go run ./testkit/benchtable/print
BENCH_files      = go run $(TAGS) ./snap/files/filesbench
BENCH_postgres   = MULLIGAN_BENCH_PG=1000 MULLIGAN_BENCH_PG_DIRS=xfs $(BENCH_RUN) 1x -bench '^BenchmarkCluster$$' ./snap/postgres/physical
BENCH_disks      = $(BENCH_RUN) 1x -bench '^BenchmarkDisks$$' ./snap/disk
BENCH_downtime   = BENCH_MB=$(MB) $(BENCH_RUN) 1x -bench '^BenchmarkRollbackDowntime$$' ./daemon
BENCH_forks      = BENCH_MB=1000 $(BENCH_RUN) 1x -bench '^BenchmarkForks$$' ./cmd/mulligand
BENCH_hooks      = $(BENCH_RUN) 200x -bench '^BenchmarkHook$$' ./cmd/mulligand
BENCH_remotes    = BENCH_FILES=$(SENT) BENCH_MB=$(MB) $(BENCH_RUN) 1x -bench '^BenchmarkRemotes$$' ./cmd/mulligand
BENCH_containers = for engine in docker podman; do \
	    BENCH_MB=$(MB) MULLIGAN_TEST_NETWORK=own $(BENCH_RUN) 1x -bench "^BenchmarkContainers\$$/^$$engine\$$" -exec 'unshare --net' ./daemon || exit 1; \
	  done

# Every other benchmark, as go test has them.
bench-go:
	go test $(TAGS) -run '^$$' -bench . -skip '^Benchmark(Cluster|Disks|RollbackDowntime|Containers|Forks|Hook|Remotes)$$' -benchmem ./...

# Every fuzz test for a short while, from what it was given and what earlier runs found. Of what is found, a few small inputs
# go to the package's testdata/fuzz, for everybody: make test runs all that is there.
fuzz:
	@set -euo pipefail; cache=$$(go env GOCACHE)/fuzz; \
	grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sort | while IFS=: read -r file func; do \
	  dir=$$(dirname "$$file"); func=$${func#func }; \
	  go test $(TAGS) -run '^$$' -fuzz "^$$func$$" -fuzztime $(FUZZTIME) "$$dir"; \
	  kept="$$dir/testdata/fuzz/$$func"; found="$$cache/$$(go list $(TAGS) "$$dir")/$$func"; \
	  [ -d "$$found" ] || continue; mkdir -p "$$kept"; \
	  room=$$((16 - $$(ls "$$kept" | wc -l))); [ $$room -gt 0 ] || continue; \
	  find "$$found" -type f -size -3 | sort | head -n $$room | xargs -r cp -n -t "$$kept"; \
	done

# Deliberate faults, which the tests must find.
mutants: deps
	$(TEST_ENV) go run ./testkit/mutants

demo: build
	CGO_ENABLED=0 $(BUILD) -o bin/demo/ ./docs/demo ./docs/demo/guestbook
	bin/demo/demo --bin bin

# The same with a virtual machine under emulation; as root.
demo-vm: build
	CGO_ENABLED=0 $(BUILD) -o bin/demo/ ./docs/demo/vm
	bin/demo/vm --bin bin

# The pages of docs/reference, from what the code says; `make test` holds them to it.
reference:
	go test $(TAGS) -count=1 -run '^TestReference$$' ./cmd/mulligan ./daemon/api ./daemon/config ./appfile ./docs -update

# Manual pages and completions, from what the commands say of themselves.
man: build
	rm -rf docs/man && go run -trimpath -buildvcs=false -tags man ./cmd/mulligan docs/man

LIB     := $(DESTDIR)$(PREFIX)/lib
install: man share
	install -d $(BINDIR)
	install -m 0755 bin/mulligan bin/mulligand $(BINDIR)

# What is the same for every processor.
share: man
	install -d $(SHARE)/man/man1 $(SHARE)/man/man8 $(LIB)/systemd/system $(LIB)/sysusers.d $(LIB)/tmpfiles.d \
	  $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	install -m 0644 docs/man/*.1 $(SHARE)/man/man1
	install -m 0644 cmd/mulligand/mulligand.8 $(SHARE)/man/man8
	install -m 0644 cmd/mulligand/systemd/mulligand.socket $(LIB)/systemd/system
	sed 's,@BINDIR@,$(PREFIX)/bin,' cmd/mulligand/systemd/mulligand.service >$(LIB)/systemd/system/mulligand.service
	install -m 0644 cmd/mulligand/systemd/sysusers.conf $(LIB)/sysusers.d/mulligan.conf
	install -m 0644 cmd/mulligand/systemd/tmpfiles.conf $(LIB)/tmpfiles.d/mulligan.conf
	bin/mulligan completion bash >$(SHARE)/bash-completion/completions/mulligan
	bin/mulligan completion zsh >$(SHARE)/zsh/site-functions/_mulligan
	bin/mulligan completion fish >$(SHARE)/fish/vendor_completions.d/mulligan.fish

# What install put there; state and configuration stay.
uninstall:
	rm -f $(BINDIR)/mulligan $(BINDIR)/mulligand $(SHARE)/man/man1/mulligan*.1 $(SHARE)/man/man8/mulligand.8 \
	  $(LIB)/systemd/system/mulligand.socket $(LIB)/systemd/system/mulligand.service \
	  $(LIB)/sysusers.d/mulligan.conf $(LIB)/tmpfiles.d/mulligan.conf \
	  $(SHARE)/bash-completion/completions/mulligan $(SHARE)/zsh/site-functions/_mulligan $(SHARE)/fish/vendor_completions.d/mulligan.fish

# Packages and releases: packaging/goreleaser.yaml says what is in them. The same commit gives the same bytes.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
RELEASE = $(patsubst v%,%,$(VERSION))
NFPM       := go run -trimpath github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
GORELEASER := go run github.com/goreleaser/goreleaser/v2@v2.15.1

# What packages have besides the programs, in bin/stage.
stage: man
	rm -rf bin/stage
	$(MAKE) --no-print-directory share DESTDIR=$(CURDIR)/bin/stage PREFIX=/usr
	gzip -9n bin/stage/usr/share/man/man*/*
	install -Dm0644 LICENSE bin/stage/usr/share/doc/mulligan/copyright
	install -Dm0644 -t bin/stage/usr/share/doc/mulligan README.md
	sed 's/@VERSION@/$(RELEASE)/' packaging/manifest.json >bin/stage/manifest.json
	chmod -R u=rwX,go=rX bin/stage
	find bin/stage -exec touch -hd "@$(SOURCE_DATE_EPOCH)" {} +
	go build -trimpath -o bin/stage/sbom ./packaging/sbom

# The packages for this host's processor, in bin/packages; make deb makes Debian's alone.
packages: deb rpm archlinux
deb rpm archlinux: stage
	mkdir -p bin/packages
	go run -trimpath ./packaging/nfpm packaging/goreleaser.yaml $(RELEASE) $(SOURCE_DATE_EPOCH) bin >bin/stage/nfpm.yaml
	$(NFPM) package --config bin/stage/nfpm.yaml --packager $@ --target bin/packages

# All that a release has, in bin/release, for x86-64 and ARM. RELEASE_URL is where its files will be, RELEASE_HOME the home page, and
# RELEASE_NAME the name in the MCP registry, as com.example/mulligan. The cross compiler is Debian's gcc-aarch64-linux-gnu.
release:
	VERSION=$(RELEASE) $(GORELEASER) release --config packaging/goreleaser.yaml --snapshot --clean
	packaging/registry bin/release $(RELEASE)

sbom: build
	go run -trimpath ./packaging/sbom bin/mulligan $(VERSION) bin/mulligan.cdx.json
	go run -trimpath ./packaging/sbom bin/mulligand $(VERSION) bin/mulligand.cdx.json

clean:
	rm -rf bin docs/man
