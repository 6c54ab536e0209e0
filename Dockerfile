# SPDX-License-Identifier: Apache-2.0
# An image with the program and the package: docker build -t penstock . && docker run --rm penstock train --steps 20
# Nothing of what builds it stays in it. For GPUs it takes a PyTorch for CUDA in both stages; the image for CPUs is what was tried.
FROM debian:12 AS build
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git make
WORKDIR /penstock
COPY . .
RUN make wheel

FROM debian:12
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/penstock && /opt/penstock/bin/pip install --no-cache-dir torch==2.13.0 numpy
COPY --from=build /penstock/dist /opt/penstock/dist
RUN /opt/penstock/bin/pip install --no-cache-dir --no-deps /opt/penstock/dist/penstock-*.whl
ENV PATH=/opt/penstock/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /work
RUN penstock train --steps 2 --set model.layers=2 --out /tmp/tried && rm -r /tmp/tried
ENTRYPOINT ["penstock"]
