// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The rate of a link by its width and speed.
#include <nupa/types.h>

#include <cstdint>

namespace nupa::base {

/// The lanes of a link (IBTA 14.2.5.6).
constexpr uint32_t lanes_of(LinkWidth width) {
  switch (width) {
    case LinkWidth::k1x:
      return 1;
    case LinkWidth::k2x:
      return 2;
    case LinkWidth::k4x:
      return 4;
    case LinkWidth::k8x:
      return 8;
    case LinkWidth::k12x:
      return 12;
  }
  return 0;
}

/// The speed of a lane in units of 100 Mb/s.
constexpr uint32_t lane_speed_of(LinkSpeed speed) {
  switch (speed) {
    case LinkSpeed::kSdr:
      return 25;
    case LinkSpeed::kDdr:
      return 50;
    case LinkSpeed::kQdr:
    case LinkSpeed::kFdr10:
      return 100;
    case LinkSpeed::kFdr:
      return 140;
    case LinkSpeed::kEdr:
      return 250;
    case LinkSpeed::kHdr:
      return 500;
    case LinkSpeed::kNdr:
      return 1000;
  }
  return 0;
}

}  // namespace nupa::base
