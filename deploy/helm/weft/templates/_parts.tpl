{{/* The image, by digest if there is one. */}}
{{- define "weft.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* What identifies one of the parts, in selectors, too: it never changes. Called with its name. */}}
{{- define "weft.labels" -}}
app.kubernetes.io/name: weft
app.kubernetes.io/component: {{ . }}
{{- end -}}

{{/* Where things are, as words for `weft install`: a list, as JSON. */}}
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

{{/* The same of what writes below directories that may be another user's. */}}
{{- define "weft.writer" -}}
{{ include "weft.bare" . }}
  add: [DAC_OVERRIDE]
{{- end -}}

{{/* A ServiceAccount, called with its name and namespace. */}}
{{- define "weft.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
{{- end -}}

{{/* The rights of the role `role` for an account, everywhere: kind ClusterRole. */}}
{{- define "weft.everywhere" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .role }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .role }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ .namespace }}
{{- end -}}

{{/* The rights of the role of its own name for an account, in its namespace. */}}
{{- define "weft.here" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ .namespace }}
{{- end -}}

{{/* Who it is, for the Lease. */}}
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
