# The user stays, so that its number is not given to another while files have it.
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
if [ -n "$purge" ]; then
  rm -rf /var/lib/gpugauge
fi
