# A CPU image with the core: docker build -t fedrecall . && docker run --rm -v "$PWD/results:/results" fedrecall
FROM python:3.12-slim

# CPU wheels of torch are on its own index; the range of versions is that of pyproject.toml.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "torch>=2.6,<2.14"

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
