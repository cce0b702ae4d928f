#pragma once
// std::string for declarations. nvcc takes a second to read <string>, which no kernel needs; the
// standard libraries declare the class in <iosfwd>.
#ifdef __CUDACC__
#include <iosfwd>
#else
#include <string>
#endif
