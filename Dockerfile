# BASE_IMAGE must have python3 (3.10 or newer). The build runs in BUILD_IMAGE, which must have the same python3, venv
# and pip; by default it is BASE_IMAGE. Only its /opt/gpugauge is copied into the result.
ARG BASE_IMAGE=python:3.13-slim
ARG BUILD_IMAGE=${BASE_IMAGE}

# hadolint ignore=DL3006
FROM ${BUILD_IMAGE} AS build
WORKDIR /source
# Every package that is installed has the hash of the lock files (CONTRIBUTING.md, "Dependencies").
COPY deploy/requirements deploy/requirements
RUN python3 -m venv /opt/gpugauge \
    && /opt/gpugauge/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r deploy/requirements/image.txt \
    && python3 -m venv /build \
    && /build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r deploy/requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY grafana grafana
# The build context has no repository from which the commit could be read.
ARG REVISION=unknown
# The compiled modules are part of the image, because its file system is read-only at run time.
RUN GPUGAUGE_REVISION="${REVISION}" /build/bin/pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /dist . \
    && /opt/gpugauge/bin/pip install --no-cache-dir --disable-pip-version-check --no-index --no-deps /dist/*.whl \
    && /opt/gpugauge/bin/pip uninstall --quiet --yes pip setuptools \
    && python3 -m compileall -q /opt/gpugauge/lib

# hadolint ignore=DL3006
FROM ${BASE_IMAGE}
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gpugauge" \
      org.opencontainers.image.description="Prometheus exporter that reports whether PyTorch really uses the GPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# The base image's own pip is not needed. The folder is the mount point for the hook's socket.
RUN if python3 -m pip --version >/dev/null 2>&1; then python3 -m pip uninstall --quiet --yes --root-user-action=ignore pip; fi \
    && install -d -o 65532 -g 65532 /run/gpugauge
COPY --from=build /opt/gpugauge /opt/gpugauge

# NVIDIA's container runtime adds the driver's library (utility) and the device nodes, and no part of CUDA.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility \
    GPUGAUGE_WEB_LISTEN_ADDRESS=:10478 \
    GPUGAUGE_DRIVER_LOST_EXIT_SECONDS=300 \
    PATH=/opt/gpugauge/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1

EXPOSE 10478
# Numeric, because Kubernetes' runAsNonRoot cannot verify a name.
USER 65532:65532
# For the port above. Kubernetes uses its own probes.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 \
    CMD ["/opt/gpugauge/bin/python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:10478/-/healthy', timeout=4)"]
ENTRYPOINT ["gpugauge"]
CMD ["serve"]
