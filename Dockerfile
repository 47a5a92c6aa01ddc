# fuseconv and all that it needs to convert and to run, on a CPU or on a GPU:
#
#     docker build --target cpu -t fuseconv:cpu .
#     docker build --target cuda -t fuseconv:cuda .
#     docker run --rm -v "$PWD:/models" fuseconv:cpu convert model.safetensors ...
#     docker run --rm --gpus all -v "$PWD:/models" fuseconv:cuda doctor
#
# --build-arg TORCH_INDEX=... names a package index with torch's builds for CPUs; without it the image for CPUs has the
# default build, with CUDA's libraries, which it does not need.

# ---- the wheel, without CUDA: Debian 12, where the build finds ONNX Runtime's C header by itself ----
FROM python:3.11-bookworm AS wheel-cpu
ARG TORCH_INDEX=""
WORKDIR /source
# What changes least comes first: torch, whose headers the build reads.
COPY constraints.txt ./
RUN PIP_EXTRA_INDEX_URL=${TORCH_INDEX} pip install --no-cache-dir -c constraints.txt \
        torch numpy scikit-build-core cmake ninja nlohmann-json
COPY . .
RUN apt-get update \
 && apt-get install --yes --no-install-recommends npm \
 && pip wheel --no-deps --no-build-isolation -C cmake.define.FUSECONV_CUDA=OFF -w /wheel .

# ---- and with CUDA: nvcc compiles for compute capability 8.0 and 9.0, and no GPU is needed ----
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS wheel-cuda
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ npm python3 python3-venv \
 && python3 -m venv /build
ENV PATH=/build/bin:$PATH
WORKDIR /source
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt torch numpy scikit-build-core cmake ninja nlohmann-json \
 && pip install --no-cache-dir -c constraints.txt --no-deps nvidia-cublas
COPY . .
# The plugin for ONNX Runtime needs its C header from Debian: the stage above has unpacked it.
COPY --from=wheel-cpu /source/build/py3-none-linux_x86_64/onnxruntime/usr/include/onnxruntime /onnxruntime
RUN FUSECONV_ONNXRUNTIME_INCLUDE=/onnxruntime \
    pip wheel --no-deps --no-build-isolation -C cmake.define.FUSECONV_CUDA=ON -w /wheel .

# ---- what is kept: no sources and no nvcc, but a C++ compiler, which AOTInductor calls when a model is converted ----
FROM python:3.11-slim-bookworm AS cpu
ARG TORCH_INDEX=""
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /opt/fuseconv/
RUN --mount=from=wheel-cpu,source=/wheel,target=/wheel \
    PIP_EXTRA_INDEX_URL=${TORCH_INDEX} pip install --no-cache-dir -c /opt/fuseconv/constraints.txt \
        "$(echo /wheel/*.whl)[cpu,cpp,huggingface]"
# Nobody converts strangers' files as root. A bundle that this user writes to /models needs the folder to be theirs:
# docker run --user "$(id -u):$(id -g)" writes it as you.
RUN useradd --create-home fuseconv
USER fuseconv
WORKDIR /models
ENTRYPOINT ["fuseconv"]
CMD ["--help"]

# AOTInductor compiles with nvcc's tools for a GPU, so this one keeps the toolkit.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS cuda
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ python3 python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/fuseconv
ENV PATH=/opt/fuseconv/bin:$PATH
COPY constraints.txt /opt/fuseconv/
RUN --mount=from=wheel-cuda,source=/wheel,target=/wheel \
    pip install --no-cache-dir -c /opt/fuseconv/constraints.txt "$(echo /wheel/*.whl)[gpu,cpp,huggingface]"
RUN useradd --create-home fuseconv
USER fuseconv
WORKDIR /models
ENTRYPOINT ["fuseconv"]
CMD ["--help"]
