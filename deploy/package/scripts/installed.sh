# `old` is the version before, empty for a new installation. `again` is set if the package was removed since.
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
  elif [ -n "$again" ]; then
    for unit in gpugauge.socket gpugauge.service; do
      if systemctl is-enabled --quiet $unit; then
        systemctl start $unit || true
      fi
    done
  else
    # The socket stays: trainings reconnect. A service that was stopped stays stopped.
    systemctl try-restart gpugauge.service || true
  fi
fi
