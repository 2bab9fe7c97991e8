# `keep` is set if the links that enable the units stay: they are configuration, as the administrator has left it.
if [ -d /run/systemd/system ]; then
  # The socket first: a training that connects would start the service again.
  systemctl stop gpugauge.socket gpugauge.service
fi
if [ -z "$keep" ]; then
  systemctl disable --quiet gpugauge.socket gpugauge.service || true
fi
