#!/usr/bin/env bash
# Builds Kubernetes' own programs into $CLUSTER/$KUBERNETES. Does nothing for those that are there.
#   KUBERNETES=debian   from the source package of Debian 12, Kubernetes 1.20: needs Debian's mirror only
#   KUBERNETES=1.33.13  that release from its Go modules, and the CRDs of the Prometheus operator
# By default 1.33.13 where Go's modules can be had, otherwise that of Debian.
set -euo pipefail
fetch=$(cd "$(dirname "$0")/../../tests/e2e" && pwd)/fetch-debian
CLUSTER=${CLUSTER:-${XDG_CACHE_HOME:-$HOME/.cache}/gpugauge-cluster}
KUBERNETES=${KUBERNETES:-}
newest=1.33.13 # as in cluster.py
programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet)
export CGO_ENABLED=0 GOCACHE=$CLUSTER/go-cache GOTOOLCHAIN=local

use_go() { # version, suite of Debian that has it
  "$fetch" "$CLUSTER/go$1" "usr/lib/go-$1/bin/go" "$2" "golang-$1-go" "golang-$1-src"
  export GOROOT=$CLUSTER/go$1/usr/lib/go-$1
  export PATH=$GOROOT/bin:$PATH
}

has_modules() (
  use_go 1.24 trixie && GOPATH=$CLUSTER/go GOFLAGS=-mod=mod go mod download "k8s.io/kubernetes@v$newest"
) &>/dev/null

build() { # version
  local package=k8s.io/component-base/version program flags minor
  minor=${1#1.}
  [ "$KUBERNETES" != debian ] || package=k8s.io/kubernetes/vendor/$package
  flags="-s -w -X $package.gitVersion=v$1 -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*} -X $package.gitTreeState=clean"
  for program in "${missing[@]}"; do
    go build -trimpath -ldflags "$flags" -o "$bin/$program" "k8s.io/kubernetes/cmd/$program"
    echo "$bin/$program"
  done
}

# The source package has all packages it needs, in the layout from before Go's modules.
from_debian() {
  local source=$CLUSTER/gopath/src/k8s.io/kubernetes generated=pkg/generated/openapi/zz_generated.openapi.go packages
  local reflect2=usr/share/gocode/src/github.com/modern-go/reflect2
  use_go 1.19 bookworm
  export GOPATH=$CLUSTER/gopath GO111MODULE=off
  if [ ! -d "$source" ]; then
    "$fetch" --source "$source.part" go.mod bookworm kubernetes
    mv "$source.part" "$source"
  fi
  # Its version of this package reads maps in a way that Go 1.18 and newer do not allow: the API server would crash.
  "$fetch" "$CLUSTER/reflect2" "$reflect2/unsafe_map.go" bookworm golang-github-modern-go-reflect2-dev
  rm -f "$source/vendor/${reflect2#*/src/}"/*.go
  cp "$CLUSTER/reflect2/$reflect2"/*.go "$source/vendor/${reflect2#*/src/}"
  cd "$source"
  if [ ! -e "$generated" ]; then # the description of the API is not part of the package
    packages=$(find -L pkg vendor/k8s.io -name '*.go' -not -path '*/sample-*' -not -path '*/code-generator/*' -exec \
      grep -l '^// +k8s:openapi-gen=' {} + | xargs -n1 dirname | sort -u | sed 's#^#k8s.io/kubernetes/#' | paste -sd,)
    go run ./vendor/k8s.io/kube-openapi/cmd/openapi-gen --logtostderr -i "$packages" -O zz_generated.openapi \
      -p k8s.io/kubernetes/pkg/generated/openapi -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r /dev/null
  fi
  build 1.20.2
}

# The go.mod of Kubernetes names folders of its repository. The published modules of the same release stand for them.
from_modules() {
  local source staging=v0.${1#1.} crds
  use_go 1.24 trixie
  export GOPATH=$CLUSTER/go GOFLAGS=-mod=mod
  folder() { go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }
  source=$(folder "k8s.io/kubernetes@v$1")
  mkdir -p "$CLUSTER/build" && cd "$CLUSTER/build"
  sed -E -e 's#^module .*#module cluster#' -e "s#(k8s\.io/[a-z-]+) => \./staging/.*#\1 => \1 $staging#" \
    -e "s#(k8s\.io/[a-z-]+) v0\.0\.0( |\$)#\1 $staging\2#" "$source/go.mod" >go.mod
  cp --no-preserve=mode "$source/go.sum" go.sum
  go mod edit -require "k8s.io/kubernetes@v$1"
  printf '//go:build tools\n\npackage tools\n\nimport _ "k8s.io/kubernetes/cmd/kube-apiserver"\n' >tools.go
  build "$1"
  crds=$(folder github.com/prometheus-operator/prometheus-operator@v0.82.2)/example/prometheus-operator-crd
  mkdir -p "$bin/crds"
  cp --no-preserve=mode "$crds"/monitoring.coreos.com_{podmonitors,servicemonitors,prometheusrules}.yaml "$bin/crds"
}

if [ -z "$KUBERNETES" ]; then
  KUBERNETES=debian
  if [ -x "$CLUSTER/$newest/${programs[-1]}" ] || has_modules; then KUBERNETES=$newest; fi
fi
bin=$CLUSTER/$KUBERNETES
mkdir -p "$bin"
missing=()
for program in "${programs[@]}"; do [ -x "$bin/$program" ] || missing+=("$program"); done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$KUBERNETES" = debian ]; then from_debian; else from_modules "$KUBERNETES"; fi
