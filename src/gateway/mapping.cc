// SPDX-License-Identifier: Apache-2.0
#include "gateway/mapping.h"

#include <arpa/inet.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/gid.h"
#include "base/gid_text.h"

namespace nupa::gateway {
namespace {

bool read_address(const std::string& text, Gid* gid) {
  in_addr ipv4;
  if (inet_pton(AF_INET, text.c_str(), &ipv4) == 1) {
    *gid = {};
    gid->raw[10] = gid->raw[11] = 0xff;  // RFC 4291, 2.5.5.2
    std::memcpy(&gid->raw[12], &ipv4, sizeof ipv4);
    return true;
  }
  return inet_pton(AF_INET6, text.c_str(), gid->raw.data()) == 1;
}

bool read_port(const std::string& text, uint16_t* port) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *port);
  return error == std::errc() && stop == end && *port != 0;
}

/// "ADDRESS", "ADDRESS:PORT" or "[ADDRESS]:PORT".
bool read_side(const std::string& text, Gid* gid, uint16_t* port) {
  *port = 0;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == text.npos || !read_address(text.substr(1, end - 1), gid)) return false;
    const std::string rest = text.substr(end + 1);
    return rest.empty() || (rest.starts_with(':') && read_port(rest.substr(1), port));
  }
  const size_t colon = text.find(':');
  const bool has_port = colon != text.npos && text.find(':', colon + 1) == text.npos;
  if (!has_port) return read_address(text, gid);
  return read_address(text.substr(0, colon), gid) && read_port(text.substr(colon + 1), port);
}

std::string side_text(const Gid& gid, uint16_t port) {
  const std::string address = base::gid_text(gid);
  if (port == 0) return address;
  return (base::is_ipv4(gid) ? address : "[" + address + "]") + ":" + std::to_string(port);
}

}  // namespace

Result<Mapping> Mapping::parse(const std::string& text) {
  const size_t equals = text.find('=');
  Mapping mapping;
  if (equals == text.npos || !read_side(text.substr(0, equals), &mapping.listen, &mapping.listen_port) ||
      !read_side(text.substr(equals + 1), &mapping.far, &mapping.far_port))
    return fail(EINVAL, "not of the form LISTEN[:PORT]=FAR[:PORT], for example 10.1.0.1=10.2.0.2");
  if (mapping.far_port != 0 && mapping.listen_port == 0)
    return fail(EINVAL, "a port of the far address needs a port of the gateway's address");
  return mapping;
}

std::string Mapping::text() const { return side_text(listen, listen_port) + "=" + side_text(far, far_port); }

}  // namespace nupa::gateway
