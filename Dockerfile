# One image for rock, roll, ray and tensorboard; `docker-compose build` makes it, docs/compose.md says how.
# BASE needs Python 3.11 or later. Packages come from pip's index (the arguments PIP_* name another), or, where
# `make wheels` filled build/wheels, from there alone: nothing is then fetched, and nothing of pip's own settings enters.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS base
USER 0:0
# Tasks on repositories need git.
RUN if ! command -v git >/dev/null; then \
      apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*; \
    fi
RUN grep -q '^[^:]*:[^:]*:1000:' /etc/passwd || echo 'rocknroll:x:1000:1000::/data:/bin/sh' >>/etc/passwd; \
    grep -q '^[^:]*:[^:]*:1000:' /etc/group || echo 'rocknroll:x:1000:' >>/etc/group; \
    mkdir -p /data/runs /data/cache && chown -R 1000:1000 /data

# Arguments and wheels stay in the stages that are thrown away.
FROM base AS dependencies
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ARG EXTRAS=ray
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
# The brackets make build/wheels optional: a pattern may match nothing.
COPY pyproject.toml build/wheel[s] /wheels/
WORKDIR /wheels
# The pip of the wheels serves a base that has none.
RUN set -e; \
    python3 -m venv --without-pip /opt/rocknroll; \
    pip="$(ls pip-*.whl 2>/dev/null || true)"; \
    if [ -n "$pip" ]; then set -- "/wheels/$pip/pip" --python /opt/rocknroll/bin/python install --no-index --find-links .; \
    else set -- -m pip --python /opt/rocknroll/bin/python install; fi; \
    printf '#!/bin/sh\nexec python3 %s --no-compile "$@"\n' "$*" >/usr/local/bin/install-packages; \
    chmod +x /usr/local/bin/install-packages
# torch alone first: a CPU build that pip finds is then kept by what depends on it.
RUN install-packages "$(sed -n 's/^ *"\(torch==[^"]*\)",*$/\1/p' pyproject.toml)"
RUN /opt/rocknroll/bin/python -c "import sys, tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
    extras = [project['optional-dependencies'][name] for name in sys.argv[1].split(',') if name]; \
    print(*project['dependencies'], *sum(extras, []), sep='\n')" "$EXTRAS" >requirements.txt \
    && install-packages -r requirements.txt
# Here and not by pip, so that every core helps, and tests and the hundreds of models of which a run uses one are left
# out; services could not keep bytecode, for their root is read-only. What is no Python of this version stays as it is.
RUN /opt/rocknroll/bin/python -m compileall -q -j 0 -x '/tests?/|/transformers/models/|/torch/testing/|/ray/rllib/' \
    /opt/rocknroll/lib >/dev/null || true

FROM dependencies AS project
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY sandbox sandbox
COPY envs envs
COPY trainer trainer
COPY dashboard dashboard
COPY recipes recipes
RUN (cd /wheels && install-packages --no-deps --prefix /opt/project /source) \
    && /opt/rocknroll/bin/python -m compileall -q -j 0 /opt/project

FROM base
COPY --from=dependencies /opt/rocknroll /opt/rocknroll
COPY --from=project /opt/project /opt/rocknroll
ENV PATH=/opt/rocknroll/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 \
    ROCKNROLL_CACHE=/data/cache \
    HOME=/data
WORKDIR /data
USER 1000:1000
CMD ["rock", "--help"]
