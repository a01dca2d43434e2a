# A CPU image with the core: docker build -t fedrecall . && docker run --rm -v "$PWD/results:/results" fedrecall
FROM python:3.12-slim

# torch's wheels from PyPI bring CUDA, several gigabytes: --build-arg PIP_EXTRA_INDEX_URL=... names the index of its CPU wheels,
# which pip then prefers. The range of versions is that of pyproject.toml.
ARG PIP_EXTRA_INDEX_URL=
RUN pip install --no-cache-dir "torch>=2.6,<2.14"

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir . \
    && useradd --create-home fedrecall \
    && install --directory --owner fedrecall /results

USER fedrecall
WORKDIR /results
ENV FEDRECALL_CACHE=/tmp/fedrecall
ENTRYPOINT ["fedrecall"]
CMD ["run", "--out", "demo"]
