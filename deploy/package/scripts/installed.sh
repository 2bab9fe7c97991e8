# `old` is the version before, empty for a new installation.
systemd-sysusers gpugauge.conf
if [ -z "$old" ]; then
  # A unit that the administrator has masked stays masked.
  systemctl enable --quiet gpugauge.socket gpugauge.service || true
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  if [ -z "$old" ]; then
    # A wrong setting is no reason to leave the package half installed: systemd tries again, the journal has the reason.
    systemctl start gpugauge.socket gpugauge.service || true
  else
    # The socket stays: trainings reconnect. A service that was stopped stays stopped.
    systemctl try-restart gpugauge.service || true
  fi
fi
