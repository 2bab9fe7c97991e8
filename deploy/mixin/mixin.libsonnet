// Rules and dashboards of gpugauge as a monitoring mixin. The imported files are generated; docs/dashboards.md.
(import 'rules.libsonnet') + {
  grafanaDashboards+:: {
    'gpugauge-fleet.json': import 'dashboards/fleet.json',
    'gpugauge-node.json': import 'dashboards/node.json',
    'gpugauge-job.json': import 'dashboards/job.json',
    'gpugauge-exporter.json': import 'dashboards/exporter.json',
  },
}
