// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The PyTorch version of this build, and all differences between versions: below 2.0 a backend is a ProcessGroup,
/// since then a ProcessGroup has backends. Includes all needed headers of torch once (it is precompiled).
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/version.h>
#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#endif

#define NUPA_TORCH_IS(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))
/// Torch has 8-bit floating-point types; torch has unsigned integers of more than 8 bits.
#define NUPA_TORCH_FLOAT8 NUPA_TORCH_IS(2, 1)
#define NUPA_TORCH_UNSIGNED NUPA_TORCH_IS(2, 3)
/// Torch has its own exceptions for communication errors.
#define NUPA_TORCH_ERRORS NUPA_TORCH_IS(2, 1)

namespace nupa::torch_backend {

#if TORCH_VERSION_MAJOR >= 2
using Base = c10d::Backend;
#else
using Base = c10d::ProcessGroup;
#endif

/// The exception in Python when a rank has died or does not come; a RuntimeError.
#if NUPA_TORCH_ERRORS
using CommunicationError = c10::DistBackendError;
inline std::exception_ptr communication_error(const std::string& text) {
  return std::make_exception_ptr(CommunicationError({__func__, __FILE__, __LINE__}, text));
}
#else
inline std::exception_ptr communication_error(const std::string& text) {
  return std::make_exception_ptr(std::runtime_error(text));
}
#endif

/// Returns whether the caller continues before the operation is done. Versions below 2.7 do not report it.
template <typename Options>
bool is_async(const Options& options) {
  if constexpr (requires { options.asyncOp; })
    return options.asyncOp;
  else
    return true;
}

}  // namespace nupa::torch_backend
