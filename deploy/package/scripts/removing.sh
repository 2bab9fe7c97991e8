if [ -d /run/systemd/system ]; then
  # The socket first: a training that connects would start the service again.
  systemctl stop gpugauge.socket gpugauge.service
fi
systemctl disable --quiet gpugauge.socket gpugauge.service || true
