// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>
#include <nupa/types.h>

#include <cstdint>
#include <string>

namespace nupa::gateway {

/// An address of the gateway and the host behind it that the address stands for.
struct Mapping {
  Gid listen;                ///< an address of the gateway
  Gid far;                   ///< the host's address
  uint16_t listen_port = 0;  ///< 0: all ports
  uint16_t far_port = 0;     ///< 0: the port that the program asks for

  /// Reads "LISTEN[:PORT]=FAR[:PORT]". IPv6 addresses with a port stand in brackets. EINVAL: it is not of this form.
  static Result<Mapping> parse(const std::string& text);
  std::string text() const;
};

}  // namespace nupa::gateway
