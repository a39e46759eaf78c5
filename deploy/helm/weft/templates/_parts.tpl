{{/* Image, by digest if one is set. */}}
{{- define "weft.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Labels of a component, also used in selectors, so they never change. The argument is the component's name. */}}
{{- define "weft.labels" -}}
app.kubernetes.io/name: weft
app.kubernetes.io/component: {{ . }}
{{- end -}}

{{/* Labels of every object, not used in selectors: they change with a release. The argument is the chart's scope. */}}
{{- define "weft.common" -}}
app.kubernetes.io/name: weft
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: weft
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* Labels of a workload: those of every object and its component. */}}
{{- define "weft.workload" -}}
{{ include "weft.common" .top }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Options of `weft install` for the paths of the node: a list, as JSON. */}}
{{- define "weft.places" -}}
{{- $words := list -}}
{{- if ne .Values.paths.configurations "/etc/cni/net.d" }}{{ $words = append $words (printf "--conf-dir=%s" .Values.paths.configurations) }}{{ end -}}
{{- if ne .Values.paths.plugins "/opt/cni/bin" }}{{ $words = append $words (printf "--bin-dir=%s" .Values.paths.plugins) }}{{ end -}}
{{- if ne .Values.install.fileName "00-weft.conflist" }}{{ $words = append $words (printf "--file-name=%s" .Values.install.fileName) }}{{ end -}}
{{ toJson $words }}
{{- end -}}

{{/* Security context of every container but the executor's. */}}
{{- define "weft.bare" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Security context of a container that writes to directories which may belong to another user. */}}
{{- define "weft.writer" -}}
{{ include "weft.bare" . }}
  add: [DAC_OVERRIDE]
{{- end -}}

{{/* ServiceAccount, unless an existing one is used. The argument has its name and namespace, and `own`. */}}
{{- define "weft.account" -}}
{{- if .own -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
  labels:
    {{- include "weft.common" .top | nindent 4 }}
{{- end -}}
{{- end -}}

{{/* Binding of the ClusterRole `role` to an account. */}}
{{- define "weft.everywhere" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .role }}
  labels:
    {{- include "weft.common" .top | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .role }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ .namespace }}
{{- end -}}

{{/* Binding of the Role `role` to the account, in its namespace. */}}
{{- define "weft.here" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .role }}
  namespace: {{ .namespace }}
  labels:
    {{- include "weft.common" .top | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .role }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ .namespace }}
{{- end -}}

{{/* Environment variables with the identity of a controller, for the Lease. */}}
{{- define "weft.identity" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end -}}

{{/* NetworkPolicy of a controller in the network of pods. The argument has its name and component, and the values. */}}
{{- define "weft.shield" -}}
{{- with .top.Values.networkPolicy }}
{{- if .enabled }}
---
# The node of a pod may always connect to it, for probes.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $.name }}
  namespace: {{ $.top.Release.Namespace }}
  labels:
    {{- include "weft.common" $.top | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "weft.labels" $.component | nindent 6 }}
  policyTypes: [Ingress]
  {{- with .metricsFrom }}
  ingress:
    - from:
        {{- toYaml . | nindent 8 }}
      ports:
        - port: 9465
  {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* PodDisruptionBudget of a controller: a drain waits until the other replica runs. The argument is that of `weft.shield`. */}}
{{- define "weft.budget" -}}
{{- if .top.Values.podDisruptionBudget.enabled }}
---
apiVersion: {{ ternary "policy/v1" "policy/v1beta1" (semverCompare ">=1.21-0" .top.Capabilities.KubeVersion.Version) }}
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .top.Release.Namespace }}
  labels:
    {{- include "weft.common" .top | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "weft.labels" .component | nindent 6 }}
{{- end }}
{{- end -}}

{{/*
Endpoint of a PodMonitor: the metrics of a container at a port. `instance` is the source of that label: the name of the node
or of the pod. Labels of the metrics take precedence, because `pod` and `namespace` are those of the pod that they are about.
*/}}
{{- define "weft.scrape" -}}
- honorLabels: true
  relabelings:
    - sourceLabels: [__meta_kubernetes_pod_container_name]
      regex: {{ .container }}
      action: keep
    - sourceLabels: [__meta_kubernetes_pod_label_app_kubernetes_io_component]
      # Its controller listens on the loopback address of its node.
      regex: neutron
      action: drop
    - sourceLabels: [__meta_kubernetes_pod_ip]
      regex: ([^:]+)
      replacement: $1:{{ .port }}
      targetLabel: __address__
    - sourceLabels: [__meta_kubernetes_pod_ip]
      regex: (.+:.+)
      replacement: "[$1]:{{ .port }}"
      targetLabel: __address__
    - sourceLabels: [__meta_kubernetes_pod_{{ .instance }}]
      targetLabel: instance
{{- end -}}

{{/* Affinity of a controller: that of its values, else replicas on different nodes. The argument has both. */}}
{{- define "weft.affinity" -}}
{{- with .affinity -}}
{{ toYaml . }}
{{- else -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            app.kubernetes.io/component: {{ .component }}
{{- end -}}
{{- end -}}
