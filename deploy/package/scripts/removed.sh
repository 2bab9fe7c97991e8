# The user stays, so that its number is not given to another while files have it.
if [ -n "$purge" ]; then
  rm -rf /var/lib/gpugauge
  rm -f /etc/systemd/system/multi-user.target.wants/gpugauge.service /etc/systemd/system/sockets.target.wants/gpugauge.socket
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
