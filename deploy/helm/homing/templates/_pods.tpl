{{/* Names. */}}
{{- define "homing.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "homing.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "homing.labels" -}}
{{ include "homing.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "homing.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "homing.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "homing.name" .) }}
{{- else }}{{ .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{/* The Secret. A release without one would only fail later, in a pod. */}}
{{- define "homing.secret" -}}
{{- required "existingSecret: name the Secret with database-url and encryption-key; docs/deployment.md says how to make it" .Values.existingSecret }}
{{- end }}

{{/* What all pods have. Without service links: those of a Service called homing would set HOMING_PORT to an address. */}}
{{- define "homing.pod" -}}
serviceAccountName: {{ include "homing.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
volumes:
  - name: tmp
    emptyDir: {sizeLimit: {{ .Values.scratchSize }}}
  - name: state
    emptyDir: {sizeLimit: {{ .Values.scratchSize }}}
  - name: secrets
    secret:
      secretName: {{ include "homing.secret" . }}
      defaultMode: 0440
  {{- with .Values.templatesConfigMap }}
  - name: templates
    configMap: {name: {{ . }}}
  {{- end }}
{{- end }}

{{- define "homing.container" -}}
image: {{ include "homing.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: state, mountPath: /var/lib/homing}
  - {name: secrets, mountPath: /etc/homing/secrets, readOnly: true}
  {{- if .Values.templatesConfigMap }}
  - {name: templates, mountPath: /etc/homing/templates, readOnly: true}
  {{- end }}
{{- end }}

{{/* Secrets are files: what is in the environment is in every crash report. */}}
{{- define "homing.environment" -}}
- {name: HOMING_DATABASE_URL_FILE, value: {{ printf "/etc/homing/secrets/%s" .Values.secretKeys.databaseUrl | quote }}}
- {name: HOMING_ENCRYPTION_KEY_FILE, value: {{ printf "/etc/homing/secrets/%s" .Values.secretKeys.encryptionKey | quote }}}
{{- with .Values.secretKeys.mailUrl }}
- {name: HOMING_MAIL_URL_FILE, value: {{ printf "/etc/homing/secrets/%s" . | quote }}}
{{- end }}
{{- with .Values.secretKeys.brokerUrl }}
- {name: HOMING_BROKER_URL_FILE, value: {{ printf "/etc/homing/secrets/%s" . | quote }}}
{{- end }}
{{- with .Values.secretKeys.jobsDatabaseUrl }}
- {name: HOMING_JOBS_DATABASE_URL_FILE, value: {{ printf "/etc/homing/secrets/%s" . | quote }}}
{{- end }}
{{- if .Values.templatesConfigMap }}
- {name: HOMING_TEMPLATE_DIR, value: /etc/homing/templates}
{{- end }}
- {name: HOMING_GRACE_SECONDS, value: {{ .Values.graceSeconds | quote }}}
{{- range $name, $value := .Values.config }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- end }}

{{/* Kubernetes asks by the pod's address, which is not a name that is served; localhost is. */}}
{{- define "homing.probes" -}}
startupProbe:
  httpGet: &live {path: /health/live, port: http, httpHeaders: [{name: Host, value: localhost}]}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  # Of the process alone: to start it anew mends no database.
  httpGet: *live
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /health/ready, port: http, httpHeaders: [{name: Host, value: localhost}]}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
