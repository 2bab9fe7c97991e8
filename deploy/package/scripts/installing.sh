# The package does not own /opt, which dpkg would remove with the last package in it.
test -d /opt || mkdir -m 755 /opt
if [ -n "$again" ]; then
  : > /run/gpugauge.again
fi
