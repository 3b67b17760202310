// SPDX-License-Identifier: Apache-2.0
/// A library without a function, which needs the drop-in library of its name. See CMakeLists.txt.
