// Rules and dashboards of gpugauge as a monitoring mixin; docs/dashboards.md. rules.libsonnet is generated.
(import 'rules.libsonnet') + {
  grafanaDashboards+:: {
    'gpugauge-fleet.json': import '../../grafana/fleet.json',
    'gpugauge-node.json': import '../../grafana/node.json',
    'gpugauge-job.json': import '../../grafana/job.json',
    'gpugauge-exporter.json': import '../../grafana/exporter.json',
    'gpugauge-cost.json': import '../../grafana/cost.json',
  },
}
