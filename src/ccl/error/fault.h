#pragma once
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace nupa::ccl {

/// Why something failed: an errno value, and for a person what it was, with the ranks and addresses that it was about.
struct Fault {
  int code;
  std::string text;
};

template <class T>
using Outcome = tl::expected<T, Fault>;

inline tl::unexpected<Fault> fault(int code, std::string text) {
  return tl::unexpected<Fault>(Fault{code, std::move(text)});
}

}  // namespace nupa::ccl
