// SPDX-License-Identifier: Apache-2.0
/// The backend as Python sees it; nupa_torch/__init__.py registers it.
#include "bindings/torch/process_group.h"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

namespace nupa::torch_backend {
namespace {

c10::intrusive_ptr<Base> create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                std::chrono::milliseconds timeout) {
  return c10::make_intrusive<ProcessGroupNupa>(store, rank, size, timeout);
}

/// Returns whether the other ranks have left, too.
bool leave_all(std::chrono::milliseconds limit) {
  ProcessGroupNupa::shut_all_down();
  return Group::await_retired(limit);
}

}  // namespace
}  // namespace nupa::torch_backend

PYBIND11_MODULE(_C, module) {
  using namespace nupa::torch_backend;
  using NoGil = py::call_guard<py::gil_scoped_release>;
  module.attr("TORCH_VERSION") = TORCH_VERSION;
  module.def("create", &create, NoGil(), py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"));
  module.def("leave_all", &leave_all, NoGil(), py::arg("limit"));
}
