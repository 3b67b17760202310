#pragma once
#include "base/unique_fd.h"

namespace nupa::base {

/// From which number on the library's own descriptors are wanted; 0, as at first: any. Any thread.
void set_lowest_descriptor(int lowest);

/// The same open file under such a number; as it was if there is none below the limit of open files.
UniqueFd out_of_the_way(UniqueFd fd);

}  // namespace nupa::base
