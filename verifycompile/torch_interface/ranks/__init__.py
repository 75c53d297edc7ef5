"""What torch and the launcher tell a process of its rank and of the degree: who asks, and what is answered."""
