// What a dashboard of ours may be: the types of @grafana/schema, each panel with its plugin's own options.
import type * as g from './node_modules/@grafana/schema/dist/types/raw/dashboard/x/types.gen';
import type * as timeseries from './node_modules/@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/types.gen';
import type * as table from './node_modules/@grafana/schema/dist/types/raw/composable/table/panelcfg/x/types.gen';
import type * as stat from './node_modules/@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/types.gen';
import type * as statushistory from './node_modules/@grafana/schema/dist/types/raw/composable/statushistory/panelcfg/x/types.gen';
import type * as bargauge from './node_modules/@grafana/schema/dist/types/raw/composable/bargauge/panelcfg/x/types.gen';

// @grafana/schema leaves these open: a query of the Prometheus data source, what it adds to an annotation, and a link.
interface Target {
  refId: string;
  datasource: g.DataSourceRef;
  expr: string;
  interval?: string;
  editorMode?: 'code' | 'builder';
  format?: 'time_series' | 'table' | 'heatmap';
  instant?: boolean;
  range?: boolean;
  legendFormat?: string;
}
interface Annotation extends g.AnnotationQuery {
  expr: string;
  step?: string;
  titleFormat?: string;
  textFormat?: string;
  tagKeys?: string;
}
interface Link {
  title: string;
  url: string;
}

type Defaults<Custom> = Omit<g.FieldConfig, 'custom' | 'links'> & { custom?: Partial<Custom>; links?: Link[] };
type Of<Type extends string, Options, Custom = Record<string, never>> = Omit<
  g.Panel,
  'type' | 'options' | 'fieldConfig' | 'targets'
> & {
  type: Type;
  options: Options;
  fieldConfig: { defaults: Defaults<Custom>; overrides: g.FieldConfigSource['overrides'] };
  targets: Target[];
};
type Panel =
  | Of<'timeseries', timeseries.Options, timeseries.FieldConfig>
  | Of<'status-history', statushistory.Options, statushistory.FieldConfig>
  // Grafana before 12.2 hides a column by `hidden`.
  | Of<'table', table.Options, table.FieldConfig & { hidden?: boolean }>
  | Of<'stat', stat.Options>
  | Of<'bargauge', bargauge.Options>;
type Row = Omit<g.RowPanel, 'panels'> & { panels: Panel[] };

export type Root = Omit<g.Dashboard, 'panels' | 'annotations'> & {
  panels: (Panel | Row)[];
  annotations: { list: Annotation[] };
};
