{{/* The components of deploy/kubernetes that the values choose, in the order of its overlays. */}}
{{- define "gpugauge.components" -}}
{{- if not (.Files.Get "files/base/service.yaml") }}{{ fail "files/ has links to other folders of the repository, which are missing here: take the packaged chart (make release-chart)" }}{{ end -}}
{{- $components := list -}}
{{- if .Values.simulate }}{{ $components = append $components "simulate" }}{{ end -}}
{{- if and .Values.runtimeClassName (not .Values.simulate) }}{{ $components = append $components "runtimeclass" }}{{ end -}}
{{- if .Values.processes }}{{ $components = append $components "hostpid" }}{{ end -}}
{{- if .Values.state }}{{ $components = append $components "state" }}{{ end -}}
{{- $asks := .Values.kubeletPods -}}
{{- if eq (toString $asks) "auto" }}{{ $asks = and .Values.processes (semverCompare ">=1.33.0-0" .Capabilities.KubeVersion.Version) }}{{ end -}}
{{- if $asks }}{{ $components = append $components "kubelet-pods" }}{{ end -}}
{{- if .Values.kubeletCaFile }}{{ $components = append $components "kubelet-ca" }}{{ end -}}
{{- if .Values.kernelLog }}{{ $components = append $components "kmsg" }}{{ end -}}
{{- if .Values.hookInjection }}{{ $components = append $components "device-plugin" }}{{ end -}}
{{- if .Values.gpuOperator }}{{ $components = append $components "gpu-operator" }}{{ end -}}
{{- $priority := default "" .Values.priorityClassName -}}
{{- if eq $priority "gpugauge" }}{{ $components = append $components "priority" }}{{ end -}}
{{- if eq $priority "system-node-critical" }}{{ $components = append $components "critical" }}{{ end -}}
{{- if (.Values.networkPolicy).enabled }}{{ $components = append $components "networkpolicy" }}{{ end -}}
{{- $monitor := default "none" (.Values.monitor).kind -}}
{{- if eq $monitor "annotations" }}{{ $components = append $components "annotations" }}{{ end -}}
{{- if eq $monitor "podMonitor" }}{{ $components = append $components "podmonitor" }}{{ end -}}
{{- if eq $monitor "serviceMonitor" }}{{ $components = append $components "servicemonitor" }}{{ end -}}
{{- if (.Values.tls).secretName }}{{ $components = append $components "tls" }}{{ end -}}
{{- toYaml $components -}}
{{- end }}

{{/* Change an object in place by a patch, as kustomize does: lists with names are merged, null removes. */}}
{{- define "gpugauge.patch" -}}
{{- $object := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- $old := get $object $key -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $object $key -}}
{{- else if and (kindIs "map" $value) (kindIs "map" $old) -}}
{{- include "gpugauge.patch" (list $old $value) -}}
{{- else if and (kindIs "slice" $value) (kindIs "slice" $old) (has $key (list "containers" "initContainers" "volumes" "volumeMounts" "env")) -}}
{{- $name := ternary "mountPath" "name" (eq $key "volumeMounts") -}}
{{- $merged := $old -}}
{{- range $item := $value -}}
{{- $found := false -}}
{{- range $each := $old -}}
{{- if eq (get $each $name) (get $item $name) -}}
{{- $found = true -}}
{{- include "gpugauge.patch" (list $each $item) -}}
{{- end -}}
{{- end -}}
{{- if not $found }}{{ $merged = append $merged $item }}{{ end -}}
{{- end -}}
{{- $_ := set $object $key $merged -}}
{{- else -}}
{{- $_ := set $object $key $value -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* An object of `files` with the labels of the release, and its namespace unless it belongs to the cluster. */}}
{{- define "gpugauge.object" -}}
{{- $root := index . 0 -}}
{{- $object := index . 1 -}}
{{- $labels := dict "app.kubernetes.io/name" "gpugauge" "app.kubernetes.io/instance" $root.Release.Name "app.kubernetes.io/managed-by" $root.Release.Service "app.kubernetes.io/version" $root.Chart.AppVersion "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version) -}}
{{- $_ := set $object.metadata "labels" (merge (default (dict) $object.metadata.labels) $labels) -}}
{{- if not (has $object.kind (list "PriorityClass" "ClusterRole" "ClusterRoleBinding")) }}{{ $_ := set $object.metadata "namespace" $root.Release.Namespace }}{{ end -}}
{{- toYaml $object }}
{{- end }}

{{/* The name of the image. */}}
{{- define "gpugauge.image" -}}
{{- $image := default (dict) .Values.image -}}
{{- default "gpugauge" $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default .Chart.AppVersion $image.tag }}{{ end -}}
{{- end }}

{{/* The port of the daemon: of its first address that is no loopback, which neither the kubelet nor Prometheus reaches. */}}
{{- define "gpugauge.port" -}}
{{- $setting := get (default (dict) .Values.settings) "web.listen_address" | default ":10478" | toString -}}
{{- $port := "" -}}
{{- range splitList "," $setting -}}
{{- $address := trim . -}}
{{- if not (or $port (eq $address "") (regexMatch "^(127[.]|localhost|\\[::1\\]|::1)" $address)) -}}
{{- $port = regexFind ":[0-9]+$" $address | trimPrefix ":" | default "10478" -}}
{{- end -}}
{{- end -}}
{{- if or (eq $port "") (eq $port "0") }}{{ fail (printf "settings: web.listen_address %q: the probes and Prometheus connect over the network, to a fixed port" $setting) }}{{ end -}}
{{- $port -}}
{{- end }}

{{/* The path of the metrics. */}}
{{- define "gpugauge.path" -}}
{{- get (default (dict) .Values.settings) "web.telemetry_path" | default "/metrics" -}}
{{- end }}

{{/* A value as text: a number of YAML is a float, and would be written with an exponent from 1e+06 on. */}}
{{- define "gpugauge.text" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}
