// SPDX-License-Identifier: Apache-2.0
// The functions that generated kernels are written with (torch/chain_text.h), beside prelude.cuh or its like for the host: functions that
// the formulas of ops use, as ATen computes them.
#include "blocks.cuh"

template <class E>
__device__ inline float rounded(float x) {
  return static_cast<float>(static_cast<E>(x));
}

// NaN where one is NaN.
__device__ inline float largest(float a, float b) {
  return isnan(a) || a > b ? a : b;
}
__device__ inline float smallest(float a, float b) {
  return isnan(a) || a < b ? a : b;
}

__device__ inline float sign(float x) {
  return static_cast<float>(x > 0) - static_cast<float>(x < 0);
}
__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
__device__ inline float silu_backward(float dy, float x) {
  const float s = sigmoid(x);
  return dy * s * (1.0f + x * (1.0f - s));
}

constexpr float kHalfRoot = 0.707106781186547524f;  // sqrt(1/2)
constexpr float kDensity = 0.398942280401432678f;   // sqrt(1/(2 pi))
constexpr float kGeluScale = 0.797884560802865356f, kGeluCubic = 0.044715f;

__device__ inline float gelu(float x) {
  return x * 0.5f * (1.0f + erff(x * kHalfRoot));
}
__device__ inline float gelu_backward(float dy, float x) {
  return dy * (0.5f * (1.0f + erff(x * kHalfRoot)) + x * expf(x * x * -0.5f) * kDensity);
}
__device__ inline float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + tanhf(kGeluScale * (x + kGeluCubic * x * x * x)));
}
__device__ inline float gelu_tanh_backward(float dy, float x) {
  const float t = tanhf(kGeluScale * (x + kGeluCubic * x * x * x));
  const float slope = kGeluScale * (1.0f + 3.0f * kGeluCubic * x * x);
  return dy * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope);
}
